-- What Grafana sends: the query builder, macros as they are put in, several statements in one panel.

--: health
SELECT 1
--: version
SELECT current_setting('server_version_num')::int/100 AS version
--: extension
SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'
--: tables
SELECT quote_ident(table_schema) || '.' || quote_ident(table_name) AS "table" FROM information_schema.tables
WHERE quote_ident(table_schema) IN ('sales', 'crm') ORDER BY 1
--: columns
SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
WHERE CASE WHEN array_length(parse_ident('sales.orders'), 1) = 2
      THEN quote_ident(table_schema) = (parse_ident('sales.orders'))[1] AND quote_ident(table_name) = (parse_ident('sales.orders'))[2]
      ELSE quote_ident(table_name) = 'sales.orders' END
--: time filter
SELECT placed_at AS "time", amount FROM sales.orders
WHERE placed_at BETWEEN '2026-01-03T00:00:00Z' AND '2026-01-09T23:59:59Z' ORDER BY placed_at
--: time group
SELECT floor(extract(epoch from placed_at)/86400)*86400 AS "time", avg(amount) AS "amount" FROM sales.orders
WHERE placed_at BETWEEN '2026-01-01T00:00:00Z' AND '2026-01-31T00:00:00Z' GROUP BY 1 ORDER BY 1
--: metric of two owners
SELECT extract(epoch from date_trunc('day', o.placed_at)) AS "time", c.city AS metric, sum(o.amount) AS value
FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id GROUP BY 1, 2 ORDER BY 1, 2
--: values of a variable
SELECT DISTINCT status AS __text, status AS __value FROM sales.orders ORDER BY 1
--: variable of several values
SELECT count(*) FROM sales.orders WHERE status IN ('new','paid')
--: several statements
--: simple protocol only
SET TIME ZONE 'UTC'; SELECT date_trunc('hour', placed_at) AS time, count(*) FROM sales.orders GROUP BY 1 ORDER BY 1
--: several statements, with a comment
--: simple protocol only
SET statement_timeout = '30s';
-- the panel's own
SELECT max(amount) AS max FROM sales.orders;
--: table of a search
SELECT * FROM crm.customers WHERE name ILIKE '%' || '3' || '%' ORDER BY id
