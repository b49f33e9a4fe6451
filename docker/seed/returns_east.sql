-- Owner returns_east (PostgreSQL): the eastern half of the returns.
CREATE TABLE returns (
    order_id bigint PRIMARY KEY,
    reason text NOT NULL,
    refund double precision NOT NULL,
    returned_on date NOT NULL
);
COMMENT ON TABLE returns IS 'Возвраты. Returned orders';
COMMENT ON COLUMN returns.reason IS 'Причина возврата. Reason of the return';
COMMENT ON COLUMN returns.refund IS 'Возвращённая сумма, руб. Amount refunded in roubles';

INSERT INTO returns
SELECT 1000000 + 20 * n,
       (ARRAY['брак', 'не тот товар', 'передумал', 'опоздала доставка'])[1 + n % 4],
       100 + n % 37 / 4.0,
       date '2025-01-15' + n % 365
FROM generate_series(1, 500) AS n;
ANALYZE returns;
