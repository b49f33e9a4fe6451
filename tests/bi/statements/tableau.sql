-- What Tableau sends, over psqlODBC: connection, the check of temporary tables, cursors, live queries.

--: connect, dates
SET DateStyle = 'ISO'
--: connect, floats
SET extra_float_digits = 2
--: isolation
SHOW transaction_isolation
--: large objects
SELECT oid, typbasetype FROM pg_type WHERE typname = 'lo'
--: tables
SELECT relname, nspname, relkind FROM pg_catalog.pg_class c, pg_catalog.pg_namespace n
WHERE relkind IN ('r', 'v', 'm', 'f', 'p') AND nspname IN ('sales', 'crm') AND n.oid = relnamespace ORDER BY nspname, relname
--: columns
SELECT n.nspname, c.relname, a.attname, a.atttypid, t.typname, a.attnum, a.attlen, a.atttypmod, c.relhasrules, c.relkind
FROM pg_class c INNER JOIN pg_namespace n ON n.oid = c.relnamespace AND c.relname LIKE 'orders' AND n.nspname LIKE 'sales'
INNER JOIN pg_attribute a ON NOT a.attisdropped AND a.attnum > 0 AND a.attrelid = c.oid
INNER JOIN pg_type t ON t.oid = a.atttypid ORDER BY n.nspname, c.relname, attnum
--: connect check
CREATE LOCAL TEMPORARY TABLE "#Tableau_1_8D2A_1_Connect_Check" ("COL" INTEGER) ON COMMIT PRESERVE ROWS
--: connect check, grouped
SELECT "#Tableau_1_8D2A_1_Connect_Check"."COL" AS "COL", SUM(1) AS "n" FROM "#Tableau_1_8D2A_1_Connect_Check" GROUP BY 1
--: connect check, dropped
DROP TABLE "#Tableau_1_8D2A_1_Connect_Check"
--: columns of custom SQL
SELECT * FROM (SELECT o.*, c.city FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id) "Custom SQL Query" LIMIT 0
--: worksheet
SELECT "orders"."status" AS "status", SUM("orders"."amount") AS "sum:amount:ok" FROM "sales"."orders" "orders" GROUP BY 1 ORDER BY 1
--: worksheet of two owners
SELECT "customers"."city" AS "city", SUM("orders"."amount") AS "sum:amount:ok"
FROM "sales"."orders" "orders" INNER JOIN "crm"."customers" "customers" ON ("orders"."customer_id" = "customers"."id")
GROUP BY 1 ORDER BY 1 ASC NULLS FIRST
--: is there anything
SELECT SUM(1) AS "sum:Number of Records:ok" FROM "sales"."orders" "orders" HAVING (COUNT(1) > 0)
--: values of a filter
SELECT "orders"."status" AS "status" FROM "sales"."orders" "orders" GROUP BY 1 ORDER BY 1 ASC NULLS FIRST
--: dates
SELECT DATE_TRUNC( 'DAY', CAST("orders"."placed_at" AS DATE) ) AS "tdy:placed_at:ok", COUNT(1) AS "n"
FROM "sales"."orders" "orders" GROUP BY 1 ORDER BY 1
--: range of a filter
SELECT MAX("orders"."placed_at") AS "TEMP(1)", MIN("orders"."placed_at") AS "TEMP(2)", COUNT(1) AS "n"
FROM "sales"."orders" "orders" HAVING (COUNT(1) > 0)
--: begin with a cursor
--: simple protocol only
BEGIN;declare "SQL_CUR0x5581a2" cursor with hold for SELECT "orders"."id", "orders"."status" FROM "sales"."orders" "orders" ORDER BY 1
--: fetch
fetch 25 in "SQL_CUR0x5581a2"
--: fetch the rest
fetch 2048 in "SQL_CUR0x5581a2"
--: commit
COMMIT
--: close
close "SQL_CUR0x5581a2"
--: a cursor outside of a transaction
declare "SQL_CUR0x5581b7" cursor with hold for SELECT c.name FROM crm.customers c JOIN sales.orders o ON o.customer_id = c.id ORDER BY o.id
--: fetch after that
fetch 2048 in "SQL_CUR0x5581b7"
--: close that
close "SQL_CUR0x5581b7"
--: context filter
CREATE LOCAL TEMPORARY TABLE "#Tableau_2_9" ON COMMIT PRESERVE ROWS AS SELECT "orders"."status" AS "status" FROM "sales"."orders" "orders" WHERE "orders"."amount" > 20 GROUP BY 1
--: joined with the context filter
SELECT COUNT(*) FROM "sales"."orders" "orders" INNER JOIN "#Tableau_2_9" "t0" ON ("orders"."status" = "t0"."status")
--: into a temporary table
SELECT "customers"."city" INTO TEMPORARY TABLE "#Tableau_2_10" FROM "crm"."customers" "customers" GROUP BY 1
--: what came into it
SELECT COUNT(*) FROM "#Tableau_2_10"
