"""The figures of the paper's text: costs, retries, the mechanism, budgets."""

from __future__ import annotations

import pytest
from oar_bench.paper import appendix

NAME = "small, m"


@pytest.fixture
def table(saved, settings_of, figures_of):
    def make(maker):
        return figures_of(maker(settings_of(saved)))[NAME]

    return make


def part(found, name):
    """The figures of one part of a setting."""
    head = f"{name} / "
    return {key.removeprefix(head): value for key, value in found.items() if key.startswith(head)}


def test_strata_has_every_way(table):
    found = table(appendix.strata)
    assert part(found, "fan-out") == {
        "Qs": 5, "Accuracy / All": 40, "Accuracy / Single-owner": 50, "Accuracy / Two-owner": 0,
        "Accuracy / Unanswerable": 100, "F1": 53.3333, "Abst.": 40, "Stop.": 0,
    }  # fmt: skip
    # w1 abstains in one of two runs, w2 stops.
    relay = part(found, "relay")
    assert (relay["Abst."], relay["Stop."]) == (10, 20)
    assert part(found, "best of fan-out and relay")["Accuracy / All"] == 70


def test_cost_is_of_one_question(table):
    found = table(appendix.cost)
    assert part(found, "fan-out") == {
        "calls": 3, "tokens": 300, "seconds": 2, "USD": 0.001,
        "USD, times / fan-out's": 1, "USD, times / relay's": 0.5,
    }  # fmt: skip
    # s1, w2, n1: draft and fan-out, 0.0015; s2: draft and relay, 0.0025; w1 one of either.
    assert part(found, "κ, paper's parser") == {
        "calls": 4.3, "tokens": 460, "seconds": 3.3, "USD": 0.0018,
        "USD, times / fan-out's": 1.8, "USD, times / relay's": 0.9,
    }  # fmt: skip
    # Nobody saved the price of a self call.
    assert "USD" not in part(found, "self")
    assert not part(found, "best of fan-out and relay")


def test_retry_is_set_against_the_router(table):
    found = table(appendix.retry)
    # fan-out, retry is 1 0 1/2 0 0 and OAR 1 1 0 0 1; OAR, retry is 1 1 1/2 0 0: what abstained
    # rightly is asked again.
    assert found["FO retry − OAR"][0] == -30
    assert found["OAR retry − OAR"][0] == -10
    assert found["Unanswerable / OAR retry − OAR"] == (-100, -100, -100)
    assert found["Two-owner / OAR retry − OAR"] == (25, 0, 50)
    assert found["Single-owner / OAR retry − OAR"] == (0, 0, 0)


def runs_of(protocol, *answers, budget=2048):
    """Runs of the questions w1, w2, … that are right, wrong or stopped."""
    kinds = {
        "right": {"outcome": "answered", "rows": [[1]]},
        "wrong": {"outcome": "abstained"},
        "stopped": {"outcome": "stopped"},
    }
    return [
        {"question": f"w{number}", "protocol": protocol, "calls": number, "budget": budget}
        | kinds[answer]
        for number, answer in enumerate(answers, 1)
    ]


TWO = [{"id": f"w{number}", "stratum": "two-owner", "kappa": 2, "rows": [[1]]} for number in (1, 2)]


def test_ablation_sets_hidden_rows_against_shown_ones(write_saved, settings_of, figures_of):
    runs = [
        *runs_of("relay+ without rows", "wrong", "wrong"),
        *runs_of("relay+ without keys", "right", "wrong"),
        *runs_of("relay+", "right", "right"),
        *runs_of("planned", "wrong", "right"),
        *runs_of("relay", "right", "right"),
        *runs_of("fan-out", "wrong", "stopped"),
    ]
    found = figures_of(appendix.ablation(settings_of(write_saved(TWO, runs))))[NAME]
    # Of two questions a difference of 1 and 0 is both, one or none in a resample.
    assert part(found, "Two-owner") == {
        "Accuracy / hidden": 0, "Accuracy / shown": 50, "Accuracy / + keys": 100,
        "Accuracy / planned": 50,
        "Differences / shown − hidden": (50, 0, 100),
        "Differences / + keys − shown": (50, 0, 100),
        "Differences / RL − planned": (50, 0, 100),
        "Differences / FO − planned": (-50, -100, 0),
        "Calls / hidden": 1.5, "Calls / shown": 1.5,
    }  # fmt: skip
    assert not part(found, "Single-owner")


def test_ablation_without_its_protocols_has_no_row(table, saved, settings_of):
    assert appendix.ablation(settings_of(saved)).rows == ()


def test_budgets_stand_side_by_side_and_share_a_draft(write_saved, settings_of, figures_of):
    one = [{"id": "w3", "stratum": "single-owner", "kappa": 1, "rows": [[1]]}]
    runs = [
        *runs_of("fan-out", "wrong", "wrong", "right", budget=8192),
        *runs_of("relay", "right", "right", "wrong", budget=8192),
        *runs_of("fan-out", "wrong", "wrong", "right", budget=1024),
        *runs_of("relay", "right", "stopped", "wrong", budget=1024),
        {"question": "w1", "protocol": "draft", "draft": "SELECT 1 FROM t JOIN u"},
        {"question": "w2", "protocol": "draft", "draft": "SELECT 1 FROM t JOIN u"},
        {"question": "w3", "protocol": "draft", "draft": "SELECT 1 FROM t"},
    ]
    settings = settings_of(write_saved([*TWO, *one], runs))
    assert sorted(setting.name for setting in settings) == [
        "small, m, B=1,024",
        "small, m, B=8,192",
    ]
    table = appendix.budgets(settings)
    assert [row.part for row in table.rows] == ["1,024", "8,192"]
    found = figures_of(table)[NAME]
    assert part(found, "8,192") == {
        "Single-owner / FO": 100, "Single-owner / RL": 0, "Single-owner / OAR": 100,
        "Two-owner / FO": 0, "Two-owner / RL": 100, "Two-owner / OAR": 100,
        "Stopped / FO": 0, "Stopped / RL": 0,
        # Ahead by 1 with two owners, behind by 1 with one, whatever is drawn.
        "Interaction": (200, 200, 200),
        # 0 0 1: one of three draws is w3 always, or never, in 3.7 and 29.6 %.
        "OAR − RL": (33.3333, 0, 100),
        "OAR − FO": (66.6667, 0, 100),
    }  # fmt: skip
    smaller = part(found, "1,024")
    # One of two is ahead: 1/2 + 1, of resamples with none or both of w1.
    assert smaller["Interaction"] == (150, 100, 200)
    assert (smaller["Two-owner / RL"], smaller["Stopped / RL"]) == (50, 33.3333)
