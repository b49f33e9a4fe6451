-- Owner marketing (SQLite): every third order had a promo code.
CREATE TABLE promos (
    order_id INTEGER PRIMARY KEY,
    promo_code TEXT NOT NULL,
    discount_percent INTEGER NOT NULL
);
INSERT INTO promos
WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < 3333)
SELECT 1000000 + 3 * n,
       CASE n % 4 WHEN 0 THEN 'ВЕСНА25' WHEN 1 THEN 'ЛЕТО15' WHEN 2 THEN 'ОСЕНЬ10' ELSE 'ЗИМА20' END,
       CASE n % 4 WHEN 0 THEN 25 WHEN 1 THEN 15 WHEN 2 THEN 10 ELSE 20 END
FROM series;
CREATE INDEX promos_code ON promos (promo_code);
ANALYZE;
