-- What Power BI sends over Npgsql: types are loaded, pools reset, tables navigated and queried.

--: types
SELECT ns.nspname, t.oid, t.typname, t.typtype, t.typnotnull,
       CASE WHEN t.typtype = 'r' THEN r.rngsubtype WHEN elem.oid IS NOT NULL THEN elem.oid ELSE 0 END AS elemtypoid
FROM pg_type AS t
JOIN pg_namespace AS ns ON ns.oid = t.typnamespace
LEFT JOIN pg_type AS elem ON elem.oid = t.typelem AND elem.typarray = t.oid
LEFT JOIN pg_range AS r ON r.rngtypid = t.oid
LEFT JOIN pg_proc AS p ON p.oid = t.typreceive
WHERE ns.nspname = 'pg_catalog' AND t.typtype IN ('b', 'r', 'm', 'e', 'd') AND p.proname IS NOT NULL
ORDER BY t.oid
--: composite types
SELECT typ.typname, att.attname, att.atttypid FROM pg_type AS typ
JOIN pg_namespace AS ns ON ns.oid = typ.typnamespace JOIN pg_class AS cls ON cls.oid = typ.typrelid
JOIN pg_attribute AS att ON att.attrelid = typ.typrelid
WHERE typ.typtype = 'c' AND cls.relkind = 'c' AND att.attnum > 0 AND NOT att.attisdropped ORDER BY 1, att.attnum
--: labels
SELECT t.typname, e.enumlabel FROM pg_enum AS e JOIN pg_type AS t ON t.oid = e.enumtypid ORDER BY 1, e.enumsortorder
--: reset of a pool
DISCARD ALL
--: character set
SELECT character_set_name FROM INFORMATION_SCHEMA.character_sets
--: tables
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM INFORMATION_SCHEMA.tables
WHERE TABLE_SCHEMA IN ('sales', 'crm') ORDER BY TABLE_SCHEMA, TABLE_NAME
--: columns
SELECT COLUMN_NAME, ORDINAL_POSITION, IS_NULLABLE,
       CASE WHEN (data_type LIKE '%unsigned%') THEN DATA_TYPE || ' unsigned' ELSE DATA_TYPE END AS DATA_TYPE
FROM INFORMATION_SCHEMA.columns WHERE TABLE_SCHEMA = 'sales' AND TABLE_NAME = 'orders'
ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
--: keys
SELECT i.CONSTRAINT_SCHEMA || '_' || i.CONSTRAINT_NAME AS INDEX_NAME, ii.COLUMN_NAME, ii.ORDINAL_POSITION
FROM INFORMATION_SCHEMA.table_constraints i
INNER JOIN INFORMATION_SCHEMA.key_column_usage ii ON i.CONSTRAINT_SCHEMA = ii.CONSTRAINT_SCHEMA
  AND i.CONSTRAINT_NAME = ii.CONSTRAINT_NAME AND i.TABLE_NAME = ii.TABLE_NAME
WHERE i.TABLE_SCHEMA = 'sales' AND i.TABLE_NAME = 'orders' AND i.CONSTRAINT_TYPE IN ('PRIMARY KEY', 'UNIQUE')
--: preview
select "$Table"."id" as "id", "$Table"."customer_id" as "customer_id", "$Table"."amount" as "amount"
from "sales"."orders" "$Table" limit 1000
--: number of rows of a preview
select count(*) as "Rows" from ( select "$Table"."id" as "id" from "sales"."orders" "$Table" ) as "_"
--: visual
select "rows"."status" as "status", sum("rows"."amount") as "a0"
from ( select "_"."status", "_"."amount" from "sales"."orders" "_" where "_"."amount" >= 5 ) "rows"
group by "status" limit 1000001
--: visual of two owners
select "rows"."city" as "city", sum("rows"."amount") as "a0", count(distinct("rows"."id")) as "a1"
from ( select "$Outer"."id", "$Outer"."amount", "$Inner"."city" from "sales"."orders" "$Outer"
       left outer join "crm"."customers" "$Inner" on ("$Outer"."customer_id" = "$Inner"."id") ) "rows"
group by "city" limit 1000001
--: slicer
select "rows"."status" as "status" from ( select "_"."status" from "sales"."orders" "_" ) "rows" group by "status" order by "status" limit 101
--: range of a slicer
select min("rows"."placed_at") as "a0", max("rows"."placed_at") as "a1" from ( select "_"."placed_at" from "sales"."orders" "_" ) "rows"
