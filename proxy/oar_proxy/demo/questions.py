"""What the demo asks, and what the answers have to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from oar_proxy.demo.orders import Marketplace

Row = tuple[Any, ...]
Rows = list[Row]


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question, what it shows, and its right answer.

    ``answer`` is None for a question that has none. ``keys`` are the pairs of owners, from and
    to, between which keys have to travel: exactly those.
    """

    shows: str
    text: str
    answer: Callable[[Marketplace], Rows] | None
    keys: frozenset[tuple[str, str]] = frozenset()


def _mean_by_city(rows: Marketplace) -> Rows:
    days: Counter[str] = Counter()
    orders: Counter[str] = Counter()
    for delivery in rows.deliveries:
        days[delivery.pvz_city] += delivery.delay_days
        orders[delivery.pvz_city] += 1
    return [(city, Fraction(days[city], orders[city])) for city in orders]


def _mean_delay_of_spring_orders(rows: Marketplace) -> Rows:
    delays = [rows.delays[order] for order, code in rows.codes.items() if code == "ВЕСНА25"]
    return [(Fraction(sum(delays), len(delays)),)]


def _refund_by_reason(rows: Marketplace) -> Rows:
    total: dict[str, float] = {}
    for returned in rows.returns:
        total[returned.reason] = total.get(returned.reason, 0.0) + returned.refund
    return list(total.items())


def _returns_by_code(rows: Marketplace) -> Rows:
    codes = (rows.codes.get(returned.order_id) for returned in rows.returns)
    return list(Counter(code for code in codes if code is not None).items())


QUESTIONS: Final = (
    DemoQuestion(
        "one owner holds everything: it is asked for the answer itself",
        "What is the average delay in days for each city?",
        _mean_by_city,
    ),
    DemoQuestion(
        "two owners: the order numbers of one go to the other (relay)",
        "What is the average delay of orders with promo code ВЕСНА25?",
        _mean_delay_of_spring_orders,
        keys=frozenset({("marketing", "logistics")}),
    ),
    DemoQuestion(
        "one table whose rows two owners hold between them",
        "What is the total refund for each reason?",
        _refund_by_reason,
    ),
    DemoQuestion(
        "policies let no key pass either way: all are asked at once",
        "How many returns are there for each promo code?",
        _returns_by_code,
    ),
    DemoQuestion(
        "nobody publishes what is asked: no answer is an answer",
        "What is the salary of the warehouse staff?",
        None,
    ),
)


def same_rows(answered: Iterable[Sequence[Any]], expected: Iterable[Row]) -> bool:
    """Compare rows as a multiset, and the values of a row too; numbers to a millionth.

    A question does not say in which order the columns come, and each row here has one number and
    at most one name for it. PostgreSQL cuts the digits of an average somewhere; a fraction has
    them all.
    """
    return _comparable(answered) == _comparable(expected)


def _comparable(rows: Iterable[Sequence[Any]]) -> Counter[Row]:
    return Counter(tuple(sorted((_rounded(value) for value in row), key=repr)) for row in rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, int | float | Decimal | Fraction):
        return round(Fraction(value), 6)
    return value
