-- Owner logistics (PostgreSQL): ten thousand deliveries.
CREATE TABLE deliveries (
    order_id bigint PRIMARY KEY,
    pvz_city text NOT NULL,
    courier text NOT NULL,
    delay_days bigint NOT NULL,
    delivered_on date NOT NULL,
    distance_km double precision NOT NULL,
    customer_phone text NOT NULL
);
COMMENT ON TABLE deliveries IS 'Доставки заказов в пункты выдачи. Deliveries of orders to pick-up points';
COMMENT ON COLUMN deliveries.pvz_city IS 'Город пункта выдачи. City of the pick-up point';
COMMENT ON COLUMN deliveries.delay_days IS 'Опоздание в днях, 0 если вовремя. Delay in days, 0 when on time';

INSERT INTO deliveries
SELECT 1000000 + n,
       (ARRAY['Москва', 'Санкт-Петербург', 'Казань', 'Екатеринбург', 'Новосибирск', 'Владивосток'])[1 + n % 6],
       (ARRAY['Стриж', 'Муравей', 'Верста', 'Тройка'])[1 + n % 4],
       n * 7919 % 11 / 3,
       date '2025-01-01' + n % 365,
       n % 400 / 4.0,
       '+7 9' || lpad((n * 7919 % 1000000000)::text, 9, '0')
FROM generate_series(1, 10000) AS n;
ANALYZE deliveries;
