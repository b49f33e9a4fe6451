-- QuickSight, Navicat, DataGrip, ibis, LibreOffice Base: what of theirs the others do not send.

--: QuickSight, columns of custom SQL
SELECT * FROM (SELECT o.id, c.city FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id) AS "tmp" WHERE 0 = 1
--: QuickSight, preview
SELECT "id", "status", "placed_at" FROM "sales"."orders" LIMIT 1000
--: QuickSight, number of rows
SELECT COUNT(*) FROM (SELECT "id" FROM "sales"."orders") AS "count_q"
--: Navicat, databases
SELECT datname, datallowconn, datconnlimit, dattablespace, pg_encoding_to_char(encoding) AS encoding FROM pg_database WHERE datname = current_database()
--: expect columns
--: Navicat, schemas
SELECT nspname, has_schema_privilege(nspname, 'USAGE') AS usage FROM pg_namespace WHERE nspname IN ('sales', 'crm') ORDER BY 1
--: Navicat, rows
SELECT * FROM "sales"."orders" LIMIT 1000 OFFSET 0
--: DataGrip, where am I
SELECT current_database() = current_catalog AS a, current_schemas(false) IS NOT NULL AS b
--: DataGrip, start of the server
SELECT round(extract(epoch from pg_postmaster_start_time() at time zone 'UTC')) > 0 AS startup_time
--: DataGrip, oldest transaction
SELECT count(L.transactionid::varchar::bigint) >= 0 AS any FROM pg_catalog.pg_locks L WHERE L.transactionid IS NOT NULL
--: DataGrip, versions of rows of the catalog
SELECT C.relkind, C.relname, pg_catalog.age(C.xmin) >= 0 AS aged FROM pg_catalog.pg_class C WHERE C.relnamespace = 'crm'::regnamespace AND C.relkind IN ('r', 'v') ORDER BY 2
--: DataGrip, data
SELECT t.* FROM sales.orders t LIMIT 501
--: DataGrip, number of rows
SELECT COUNT(*) FROM (SELECT t.* FROM sales.orders t) tmp
--: DataGrip, places of rows
SELECT t.*, CTID FROM sales.orders t LIMIT 501
--: expect refused 42703
--: ibis, a view to describe a query by
CREATE OR REPLACE TEMPORARY VIEW "_ibis_view_1" AS SELECT o.status, c.city FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id
--: ibis, its columns
SELECT a.attname AS column_name, format_type(a.atttypid, a.atttypmod) AS data_type, NOT a.attnotnull AS nullable
FROM pg_attribute AS a WHERE a.attrelid = '"_ibis_view_1"'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
--: ibis, its rows
SELECT "t0"."city", COUNT(*) AS "n" FROM "_ibis_view_1" AS "t0" GROUP BY 1 ORDER BY 1
--: ibis, dropped
DROP VIEW IF EXISTS "_ibis_view_1"
--: LibreOffice, tables
SELECT DISTINCT ON (c.relname, n.nspname) n.nspname, c.relname, c.relkind, d.description
FROM pg_class c LEFT JOIN pg_description d ON c.oid = d.objoid AND d.objsubid = 0, pg_namespace n
WHERE c.relnamespace = n.oid AND n.nspname IN ('sales', 'crm') AND c.relkind IN ('r', 'v') ORDER BY c.relname, n.nspname
--: LibreOffice, columns
SELECT * FROM "sales"."orders" WHERE 0 = 1
--: LibreOffice, form
SELECT "orders".* FROM "sales"."orders" AS "orders" WHERE "orders"."id" = 7
--: LibreOffice, a new record
INSERT INTO "sales"."orders" ("id", "status") VALUES (99, 'new')
--: expect refused 25006
--: the session goes on
SELECT max(id) FROM crm.customers
