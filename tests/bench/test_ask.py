"""Scoring answers, and the configuration the benchmarks serve with."""

from __future__ import annotations

import psycopg
import pytest
from oar_bench.ask import score
from oar_bench.harness import owner_settings
from oar_bench.layout import Organisation, Owner, Question, find_benchmarks
from oar_bench.result import Result

ABSTAINED = type("Abstained", (psycopg.DatabaseError,), {"sqlstate": "OA001"})()
FAILED = psycopg.errors.UndefinedTable()


def answer(*rows, oids=(20, 25)):
    return Result(("a", "b"), oids, rows)


def asked(rows=None, unanswerable=False):
    return Question("1", "o", rows=rows, unanswerable=unanswerable)


@pytest.mark.parametrize(
    ("question", "got", "outcome"),
    [
        (asked([(1, "x"), (2, "y")]), answer((b"2", b"y"), (b"1", b"x")), "correct"),
        (asked([(1, "x")]), answer((b"1", b"x"), (b"1", b"x")), "wrong"),
        (asked([(1.0, "x")]), answer((b"1", b"x")), "correct"),
        (asked([(1, None)]), answer((b"1", None)), "correct"),
        (asked([(1, "")]), answer((b"1", None)), "wrong"),
        (asked([(1, "x")]), answer((b"t", b"x"), oids=(16, 25)), "correct"),
        (asked([(0, "t")]), answer((b"f", b"t"), oids=(16, 25)), "correct"),
        (asked([(237.71428571428572, "9")]), answer((b"237.7142857142857143", b"9")), "correct"),
        (asked([(1, 9)]), answer((b"1", b"9.0")), "correct"),
        (asked([(1, "1e")]), answer((b"1", b"1e0")), "wrong"),
        (asked([]), answer(), "correct"),
        (asked([(1, "x")]), FAILED, "wrong"),
        (asked([(1, "x")]), ABSTAINED, "abstained"),
        (asked(), answer((b"1", b"x")), "unscored"),
        (asked(unanswerable=True), ABSTAINED, "correct"),
        (asked(unanswerable=True), answer(), "wrong"),
        (asked(unanswerable=True), FAILED, "wrong"),
    ],
)
def test_score(question, got, outcome):
    assert score(question, got) == outcome


def test_owners_are_served_under_their_organisations_names(benchmark_directory):
    (benchmark,) = find_benchmarks(benchmark_directory)
    owners = owner_settings(benchmark.organisations.values(), benchmark_directory / "p.yaml")
    assert list(owners) == ["shop__cassie", "shop__valarie", "shop__zoe"]
    assert {owner.published_schema for owner in owners.values()} == {"Shop"}
    url = owners["shop__zoe"].url.get_secret_value()
    assert url == f"sqlite:///{(benchmark_directory / 'orgs/Shop/zoe.sqlite').resolve()}"


def test_names_that_fold_to_the_same_are_told_apart(tmp_path):
    owners = tuple(Owner(name, tmp_path / "x", ("t",)) for name in ("a b", "A-B", "ä" * 80))
    names = list(owner_settings([Organisation("1st", owners)], tmp_path / "p.yaml"))
    assert names == ["_1st__a_b", "_1st__a_b_2", "_1st__" + "_" * 57]
