-- What Looker sends: the tests of a connection, explores, SQL Runner, derived tables.

--: kill test
SELECT pid = pg_backend_pid() AS mine FROM pg_stat_activity WHERE pid = pg_backend_pid()
--: who runs what
SELECT usename = session_user AS mine, state FROM pg_stat_activity WHERE pid = pg_backend_pid()
--: killing nobody
SELECT pg_terminate_backend(2147483647)
--: expect columns
--: time zone
SET TIME ZONE 'UTC'
--: schemas
SELECT schema_name FROM information_schema.schemata WHERE schema_name IN ('sales', 'crm') ORDER BY 1
--: explore
-- Looker Query Context '{"user_id":1,"history_slug":"a1b2"}'
SELECT (TO_CHAR(DATE_TRUNC('month', orders."placed_at"), 'YYYY-MM')) AS "orders.placed_month", COUNT(DISTINCT orders."id") AS "orders.count"
FROM "sales"."orders" AS orders
LEFT JOIN "crm"."customers" AS customers ON orders."customer_id" = customers."id"
WHERE (customers."city") = 'Казань'
GROUP BY (DATE_TRUNC('month', orders."placed_at")) ORDER BY 1 DESC FETCH NEXT 500 ROWS ONLY
--: explore with measures
SELECT orders.status AS "orders.status", COALESCE(SUM(orders.amount), 0) AS "orders.total", AVG(orders.amount) AS "orders.mean"
FROM sales.orders AS orders GROUP BY 1 ORDER BY 2 DESC FETCH NEXT 500 ROWS ONLY
--: suggestions of a filter
SELECT DISTINCT customers."city" AS "customers.city" FROM crm.customers AS customers
WHERE UPPER(customers."city") LIKE UPPER('ка%') ORDER BY 1 FETCH NEXT 1000 ROWS ONLY
--: totals
SELECT COUNT(*) AS "orders.count" FROM sales.orders AS orders FETCH NEXT 1 ROWS ONLY
--: derived table, kept
CREATE TABLE looker_scratch.lr_1 AS SELECT status, count(*) FROM sales.orders GROUP BY status
--: expect refused 3F000
--: derived table, temporary
CREATE TEMPORARY TABLE lr_2 AS SELECT status, count(*) AS n FROM sales.orders GROUP BY status
--: from the derived table
SELECT sum(n) FROM lr_2
