-- Owner returns_west (SQLite): the western half of the returns, with the columns of the eastern.
CREATE TABLE returns (
    order_id INTEGER PRIMARY KEY,
    reason TEXT NOT NULL,
    refund REAL NOT NULL,
    returned_on DATE NOT NULL
);
INSERT INTO returns
WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < 400)
SELECT 1000000 + 25 * n - 1,
       CASE n % 4 WHEN 0 THEN 'брак' WHEN 1 THEN 'не тот товар' WHEN 2 THEN 'передумал' ELSE 'опоздала доставка' END,
       100 + n % 41 / 4.0,
       date('2025-01-15', '+' || (n % 365) || ' days')
FROM series;
ANALYZE;
