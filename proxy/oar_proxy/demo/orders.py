"""The demo's rows, the same ones every time, and what its questions have to answer.

The answers are computed from the rows in plain Python, by nothing that the proxy uses.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Final, NamedTuple

ORDERS: Final = 100_000
SEED: Final = 20250301
FIRST_ORDER: Final = 1_000_001

_YEAR_BEGINS: Final = date(2025, 1, 1)
_DAYS: Final = 365

WEST: Final = "west"
EAST: Final = "east"

_CITIES: Final = (
    # city, region, share of orders, mean delay in days
    ("Москва", WEST, 0.24, 0.6),
    ("Санкт-Петербург", WEST, 0.14, 0.8),
    ("Нижний Новгород", WEST, 0.07, 1.1),
    ("Казань", WEST, 0.08, 0.9),
    ("Самара", WEST, 0.06, 1.3),
    ("Краснодар", WEST, 0.07, 1.6),
    ("Екатеринбург", EAST, 0.10, 1.2),
    ("Новосибирск", EAST, 0.09, 1.7),
    ("Красноярск", EAST, 0.05, 2.1),
    ("Иркутск", EAST, 0.04, 2.6),
    ("Хабаровск", EAST, 0.03, 3.1),
    ("Владивосток", EAST, 0.03, 3.4),
)

_COURIERS: Final = ("Стриж", "Муравей", "Верста", "Тройка")

PROMO_SHARE: Final = 0.3
_CODES: Final = (
    # code, discount in percent, the months it is handed out in
    ("ВЕСНА25", 25, (3, 4, 5)),
    ("ЛЕТО15", 15, (6, 7, 8)),
    ("ОСЕНЬ10", 10, (9, 10, 11)),
    ("ЗИМА20", 20, (12, 1, 2)),
    ("ДРУГ5", 5, tuple(range(1, 13))),
    ("НОВЫЙ30", 30, tuple(range(1, 13))),
)

_REASONS: Final = ("брак", "не тот товар", "не подошёл размер", "передумал")
_LATE: Final = "опоздала доставка"


class Delivery(NamedTuple):
    """A row of ``logistics.deliveries``."""

    order_id: int
    pvz_city: str
    courier: str
    delay_days: int
    delivered_on: date
    distance_km: float


class Promo(NamedTuple):
    """A row of ``marketing.promos``."""

    order_id: int
    promo_code: str
    discount_percent: int


class Return(NamedTuple):
    """A row of ``returns.returns``, which two regional owners hold between them."""

    order_id: int
    reason: str
    refund: float
    returned_on: date


@dataclass(frozen=True)
class Marketplace:
    """All owners' rows."""

    deliveries: Sequence[Delivery]
    promos: Sequence[Promo]
    returns_west: Sequence[Return]
    returns_east: Sequence[Return]

    @property
    def returns(self) -> Iterator[Return]:
        """Both owners' returns."""
        yield from self.returns_west
        yield from self.returns_east

    @cached_property
    def codes(self) -> dict[int, str]:
        """Promo code by order."""
        return {promo.order_id: promo.promo_code for promo in self.promos}

    @cached_property
    def delays(self) -> dict[int, int]:
        """Delay in days by order."""
        return {delivery.order_id: delivery.delay_days for delivery in self.deliveries}


def make(orders: int = ORDERS) -> Marketplace:
    """Make the rows of that many orders. The same number gives the same rows on every machine."""
    # Only random() is drawn from: its sequence for a seed is kept between Python versions.
    draw = random.Random(SEED).random  # noqa: S311 - made-up rows, no secret
    cities = _cumulative()
    by_month = {
        month: [(code, percent) for code, percent, months in _CODES if month in months]
        for month in range(1, 13)
    }
    deliveries: list[Delivery] = []
    promos: list[Promo] = []
    returns: dict[str, list[Return]] = {WEST: [], EAST: []}
    for order_id in range(FIRST_ORDER, FIRST_ORDER + orders):
        share = draw()
        city, region, mean_delay = next(
            (city, region, mean) for city, region, limit, mean in cities if share < limit
        )
        delay = int(mean_delay * 2 * draw() * (3 if draw() < 0.05 else 1) + draw())
        ordered_on = _YEAR_BEGINS + timedelta(days=int(draw() * _DAYS))
        delivered_on = ordered_on + timedelta(days=2 + delay)
        courier = _COURIERS[int(draw() * len(_COURIERS))]
        distance = int(draw() * 400) / 4
        deliveries.append(Delivery(order_id, city, courier, delay, delivered_on, distance))
        if draw() < PROMO_SHARE:
            codes = by_month[ordered_on.month]
            promos.append(Promo(order_id, *codes[int(draw() * len(codes))]))
        if draw() < 0.03 + 0.02 * delay:
            late = delay >= 3 and draw() < 0.6
            reason = _LATE if late else _REASONS[int(draw() * len(_REASONS))]
            # Quarters are exact in binary: their sum does not depend on the order of the rows.
            refund = int(200 + draw() * 40_000) / 4
            returned_on = delivered_on + timedelta(days=int(draw() * 14))
            returns[region].append(Return(order_id, reason, refund, returned_on))
    return Marketplace(deliveries, promos, returns[WEST], returns[EAST])


def _cumulative() -> list[tuple[str, str, float, float]]:
    limits = []
    limit = 0.0
    for city, region, share, mean_delay in _CITIES:
        limit += share
        limits.append((city, region, limit, mean_delay))
    # The last limit is 1 but for rounding.
    city, region, _, mean_delay = limits[-1]
    limits[-1] = (city, region, 1.0, mean_delay)
    return limits
