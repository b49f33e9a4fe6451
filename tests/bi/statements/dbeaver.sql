-- What DBeaver sends: connection, navigator, data viewer.

--: connect
SELECT current_schema(), session_user = current_user
--: search path
SHOW search_path
--: expect columns
--: settings
SELECT setting FROM pg_catalog.pg_settings WHERE name = 'standard_conforming_strings'
--: databases
SELECT db.oid, db.* FROM pg_catalog.pg_database db WHERE datallowconn AND NOT datistemplate ORDER BY db.datname
--: expect columns
--: schemas
SELECT n.nspname, d.description IS NOT NULL AS described
FROM pg_catalog.pg_namespace n
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid = n.oid AND d.objsubid = 0 AND d.classoid = 'pg_namespace'::regclass
WHERE n.nspname IN ('sales', 'crm') ORDER BY nspname
--: types
SELECT t.oid, t.*, c.relkind, format_type(nullif(t.typbasetype, 0), t.typtypmod) AS base_type_name, d.description
FROM pg_catalog.pg_type t
LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
LEFT OUTER JOIN pg_catalog.pg_description d ON t.oid = d.objoid
WHERE t.typname IS NOT NULL AND (c.relkind IS NULL OR c.relkind = 'c')
--: expect columns
--: tables
SELECT c.relname, c.relkind, d.description
FROM pg_catalog.pg_class c
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid = c.oid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass
WHERE c.relnamespace = 'sales'::regnamespace AND c.relkind NOT IN ('i', 'I', 'c')
--: columns
SELECT c.relname, a.attname, a.atttypid, a.attnum, a.atttypmod, pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) AS def_value, dsc.description
FROM pg_catalog.pg_attribute a
INNER JOIN pg_catalog.pg_class c ON a.attrelid = c.oid
LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON a.attrelid = ad.adrelid AND a.attnum = ad.adnum
LEFT OUTER JOIN pg_catalog.pg_description dsc ON c.oid = dsc.objoid AND a.attnum = dsc.objsubid
WHERE NOT a.attisdropped AND c.relkind NOT IN ('i', 'I', 'c') AND c.oid = 'sales.orders'::regclass AND a.attnum > 0
ORDER BY a.attnum
--: constraints
SELECT c.oid, c.*, t.relname AS tabrelname FROM pg_catalog.pg_constraint c
INNER JOIN pg_catalog.pg_class t ON t.oid = c.conrelid WHERE t.oid = 'sales.orders'::regclass
--: sizes
SELECT c.relname, pg_catalog.pg_total_relation_size(c.oid) AS total_rel_size, pg_catalog.pg_relation_size(c.oid) AS rel_size
FROM pg_class c WHERE c.relnamespace = 'crm'::regnamespace
--: definition
SELECT length(pg_catalog.pg_get_viewdef('sales.orders'::regclass, true)) > 0
--: data
SELECT x.* FROM sales.orders x LIMIT 200
--: data, second page
SELECT x.* FROM sales.orders x ORDER BY id LIMIT 20 OFFSET 20
--: filtered and sorted
SELECT x.* FROM sales.orders x WHERE status = 'new' ORDER BY x.amount DESC, id
--: number of rows
SELECT COUNT(*) FROM (SELECT x.* FROM sales.orders x) dbvrcnt
--: grouping panel
SELECT status, COUNT(*) FROM (SELECT x.* FROM sales.orders x) src GROUP BY status ORDER BY 2, 1
--: values of a filter
SELECT DISTINCT city, count(*) FROM crm.customers GROUP BY city ORDER BY 1
--: edit a cell
UPDATE sales.orders SET status = 'paid' WHERE id = 1
--: expect refused 25006
--: plan
EXPLAIN (FORMAT XML, ANALYSE) SELECT * FROM sales.orders
--: expect refused 0A000
--: the session goes on
SELECT count(*) FROM crm.customers
