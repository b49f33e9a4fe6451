-- Ask with psql. Run `make demo` first, then:
--   psql postgresql://demo:demo@127.0.0.1:6432/oar -f examples/psql_script.sql
\set ON_ERROR_STOP on
\pset footer off

\echo == what is published
\d logistics.deliveries
SELECT schema, name, owners, row_split FROM oar.tables;

\echo == how a question would be answered
SELECT * FROM oar_explain('What is the total refund for each reason?');

\echo == its answer
SELECT * FROM oar_ask('What is the total refund for each reason?') ORDER BY reason;

\echo == the same as a comment, where a tool lets nothing else through
/* oar: What is the total refund for each reason? */;

\echo == SQL over tables of two owners, with what was done
EXPLAIN (ANALYZE)
SELECT d.courier, avg(d.delay_days)
FROM logistics.deliveries AS d JOIN marketing.promos AS p USING (order_id)
WHERE p.promo_code = 'ВЕСНА25' GROUP BY d.courier;

\echo == an export
\copy (SELECT reason, count(*) FROM returns.returns GROUP BY reason ORDER BY reason) TO STDOUT WITH (FORMAT csv, HEADER)

\echo == what was disclosed
SELECT from_owner, from_column, to_owner, keys, rule FROM oar.disclosures ORDER BY at;
