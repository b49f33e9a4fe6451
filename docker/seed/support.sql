-- Owner support (MariaDB): nine hundred requests about orders.
SET NAMES utf8mb4;

CREATE TABLE tickets (
    id int unsigned PRIMARY KEY AUTO_INCREMENT,
    order_id bigint NOT NULL COMMENT 'Номер заказа. Number of the order',
    topic varchar(40) NOT NULL COMMENT 'Тема обращения. What the request is about',
    priority enum('низкий', 'обычный', 'срочный') NOT NULL COMMENT 'Срочность. Priority',
    is_open bit(1) NOT NULL,
    compensation decimal(10, 2) COMMENT 'Компенсация в рублях, NULL если не было. Compensation in roubles',
    opened_at timestamp NOT NULL COMMENT 'Когда открыто. When it was opened',
    INDEX (order_id)
) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci COMMENT 'Обращения в поддержку. Support requests';

SET time_zone = '+03:00';
INSERT INTO tickets (order_id, topic, priority, is_open, compensation, opened_at)
WITH RECURSIVE series (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < 900)
SELECT 1000000 + 11 * n,
       ELT(1 + n % 4, 'Доставка', 'доставка', 'Возврат', 'Оплата'),
       ELT(1 + n % 3, 'обычный', 'срочный', 'низкий'),
       n % 7 = 0,
       IF(n % 5 = 0, 100 + n % 41 / 4, NULL),
       TIMESTAMP'2025-01-03 09:00:00' + INTERVAL n * 37 % 525600 MINUTE
FROM series;
ANALYZE TABLE tickets;
