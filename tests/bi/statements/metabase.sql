-- What Metabase sends, over PostgreSQL's JDBC driver: connection, sync, scan, questions.

--: connect
SET extra_float_digits = 3
--: connect, name
SET application_name = 'Metabase v0.56.4 [3f2a1c]'
--: connect, isolation
SHOW TRANSACTION ISOLATION LEVEL
--: time zone
SELECT current_setting('TIMEZONE') AS timezone
--: schemas
SELECT nspname FROM pg_catalog.pg_namespace
WHERE nspname !~ '^(pg_|oar)' AND nspname NOT IN ('information_schema', 'public', 'private')
  AND has_schema_privilege(nspname, 'USAGE')
ORDER BY 1
--: privileges
WITH found AS (
  SELECT schemaname AS schema, tablename AS name FROM pg_catalog.pg_tables
  UNION SELECT schemaname, viewname FROM pg_catalog.pg_views
  UNION SELECT schemaname, matviewname FROM pg_catalog.pg_matviews
)
SELECT NULL AS role, schema, name,
       has_any_column_privilege(current_user, quote_ident(schema) || '.' || quote_ident(name), 'select') AS "select"
FROM found WHERE schema IN ('sales', 'crm') ORDER BY 2, 3
--: tables
SELECT n.nspname AS schema, c.relname AS name, c.relkind, d.description
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_description AS d ON d.objoid = c.oid AND d.objsubid = 0
WHERE c.relkind IN ('r', 'p', 'v', 'f', 'm') AND n.nspname IN ('sales', 'crm') ORDER BY 1, 2
--: fields
SELECT c.column_name AS name, c.data_type AS database_type, c.ordinal_position - 1 AS position,
       c.table_schema AS schema, c.table_name AS table_name, c.is_nullable = 'YES' AS nullable,
       col_description(format('%I.%I', c.table_schema, c.table_name)::regclass::oid, c.ordinal_position) AS remarks
FROM information_schema.columns AS c
WHERE c.table_schema IN ('sales', 'crm') ORDER BY 4, 5, 3
--: foreign keys
SELECT n.nspname, c.relname, k.conname FROM pg_constraint AS k
JOIN pg_class AS c ON c.oid = k.conrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND n.nspname IN ('sales', 'crm')
--: may it be read
SELECT TRUE AS "_" FROM "sales"."orders" WHERE 1 <> 1 LIMIT 0
--: fingerprint
SELECT "source"."id", substring("source"."status", 1, 1234) AS "substring0", "source"."placed_at"
FROM (SELECT "sales"."orders"."id", "sales"."orders"."status", "sales"."orders"."placed_at" FROM "sales"."orders") AS "source"
LIMIT 10000
--: field values
SELECT "crm"."customers"."city" AS "city" FROM "crm"."customers"
GROUP BY "crm"."customers"."city" ORDER BY "crm"."customers"."city" ASC LIMIT 5000
--: distinct values
SELECT DISTINCT "sales"."orders"."status" AS "status" FROM "sales"."orders"
ORDER BY "sales"."orders"."status" ASC LIMIT 1001
--: table preview
SELECT "sales"."orders"."id" AS "id", "sales"."orders"."amount" AS "amount"
FROM "sales"."orders" ORDER BY "sales"."orders"."id" ASC LIMIT 2000
--: question
-- Metabase:: userID: 1 queryType: MBQL queryHash: 5e1f0a
SELECT DATE_TRUNC('month', "source"."placed_at") AS "placed_at", COUNT(*) AS "count", SUM("source"."amount") AS "sum"
FROM (SELECT "sales"."orders"."placed_at", "sales"."orders"."amount" FROM "sales"."orders" WHERE "sales"."orders"."status" = 'paid') AS "source"
GROUP BY DATE_TRUNC('month', "source"."placed_at") ORDER BY 1 ASC
--: joined question
SELECT "Customers"."city" AS "Customers__city", COUNT(DISTINCT "sales"."orders"."id") AS "count"
FROM "sales"."orders"
LEFT JOIN "crm"."customers" AS "Customers" ON "sales"."orders"."customer_id" = "Customers"."id"
GROUP BY "Customers"."city" ORDER BY "count" DESC, "Customers__city" ASC
--: question over a saved one
WITH "#12-orders" AS (SELECT * FROM sales.orders WHERE amount > 10)
SELECT status, count(*) FROM "#12-orders" GROUP BY status ORDER BY status LIMIT 1048575
--: relative dates
SELECT count(*) FROM "sales"."orders"
WHERE "sales"."orders"."placed_at" >= CAST((CAST('2026-01-10' AS timestamp) + (INTERVAL '-5 day')) AS date)
  AND "sales"."orders"."placed_at" < timestamp '2026-01-20 00:00:00.000'
--: text search
SELECT count(*) AS "count" FROM "crm"."customers" WHERE (LOWER("crm"."customers"."name") LIKE '%omer 3%')
--: number of rows
SELECT COUNT(*) AS "count" FROM "sales"."orders"
