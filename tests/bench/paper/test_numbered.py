"""The paper's tables over the five questions of conftest, every figure worked out by hand.

Accuracy of s1, s2, w1, w2, n1 (w1 is the mean of two runs):

    fan-out             1 0 0   0 1
    relay               0 1 1/2 0 0
    OAR, paper's parser 1 1 0   0 1    w1's drafts: a CTE it cannot list, then one it relays in vain
    OAR, ours           1 1 1/2 0 1
    self                0 0 1   0 1    w1's second call has no reply
    ask                 1 1 1/2 0 0
    difficulty          1 1 1/2 0 1
"""

from __future__ import annotations

import json

import pytest
from oar_bench.paper import numbered
from oar_bench.paper.figures import text

NAME = "small, m"


@pytest.fixture
def table(saved, settings_of, figures_of):
    """Make one table of the runs of conftest, and index its figures."""

    def make(maker):
        return figures_of(maker(settings_of(saved)))[NAME]

    return make


def test_table_2_sets_two_tables_of_one_owner_against_two_of_two(table):
    # s2's reference joins t and v of one owner, w1's t and u; the others read no two tables.
    # The interval is of one question each: there is nothing else to draw.
    assert table(numbered.table_2) == {
        "One owner / Qs": 1, "One owner / FO": 0, "One owner / RL": 100,
        "Two owners / Qs": 1, "Two owners / FO": 0, "Two owners / RL": 50,
        "Diff.": (-50, -50, -50),
    }  # fmt: skip


def test_table_3_marks_the_highest(table):
    assert table(numbered.table_3) == {
        "Fixed protocols / Fan-out": 40,
        "Fixed protocols / Relay": 30,
        "Other routers / Self": 40,
        "Other routers / Ask": 50,
        "Other routers / Difficulty": (70, "*"),
        "Ownership routing / OAR": 60,
        "with our parser / OAR": (70, "*"),
    }


def test_table_3_marks_what_is_above_the_best_fixed_protocol_with_certainty(
    write_saved, settings_of, figures_of
):
    # Fan-out is right on four questions, relay on the four others, and the draft tells which: OAR
    # is ahead of either on four of eight. Of eight draws none is ahead once in 256 times, at most
    # one nine times: the 2.5th percentile is one of eight, above zero.
    questions, runs = [], []
    for number in range(8):
        two = number >= 4
        key = f"q{number}"
        stratum = "two-owner" if two else "single-owner"
        questions.append({"id": key, "stratum": stratum, "kappa": 1 + two, "rows": [[1]]})
        right, wrong = {"outcome": "answered", "rows": [[1]]}, {"outcome": "abstained"}
        runs += [
            {"question": key, "protocol": "fan-out", **(wrong if two else right)},
            {"question": key, "protocol": "relay", **(right if two else wrong)},
            {"question": key, "protocol": "draft", "draft": f"SELECT 1 FROM {'t JOIN u' if two else 't'}"},
        ]  # fmt: skip
    setting = settings_of(write_saved(questions, runs))
    found = figures_of(numbered.table_3(setting))[NAME]
    assert found["Ownership routing / OAR"] == (100, "*†")
    assert found["Fixed protocols / Fan-out"] == 50
    best = figures_of(numbered.table_11(setting))[NAME]["OAR − best"]
    assert best == (50, 12.5, 87.5)
    # Six questions, two of them relay's: none of those is drawn in (4/6)^6 = 8.8 % of the
    # resamples, the interval begins at zero, and there is no mark.
    fewer = settings_of(write_saved(questions[:6], runs[:18]))
    assert figures_of(numbered.table_3(fewer))[NAME]["Ownership routing / OAR"] == (100, "*")


def test_table_4_goes_by_the_reference_cover(table):
    assert table(numbered.table_4) == {
        "Single-owner / FO": 50, "Single-owner / RL": 50,
        "Single-owner / OAR": 100, "Single-owner / Ours": 100,
        "Two-owner / FO": 0, "Two-owner / RL": 25, "Two-owner / OAR": 0, "Two-owner / Ours": 25,
        "Unanswerable / FO": 100, "Unanswerable / RL": 0,
        "Unanswerable / OAR": 100, "Unanswerable / Ours": 100,
    }  # fmt: skip


def test_table_5_has_relay_plus_and_what_routes_to_it(write_saved, settings_of, figures_of):
    runs = [
        {"question": "w", "protocol": "fan-out", "outcome": "abstained"},
        {"question": "w", "protocol": "relay", "outcome": "stopped"},
        {"question": "w", "protocol": "relay+", "outcome": "answered", "rows": [[1]]},
        {"question": "w", "protocol": "compiled", "outcome": "answered", "rows": [[1]]},
        {"question": "w", "protocol": "draft", "draft": "SELECT 1 FROM t JOIN u"},
    ]
    questions = [{"id": "w", "stratum": "three-or-more", "kappa": 3, "rows": [[1]]}]
    setting = settings_of(write_saved(questions, runs))
    assert figures_of(numbered.table_5(setting))[NAME] == {
        f"Three or more / {way}": accuracy
        for way, accuracy in {
            "FO": 0, "RL": 0, "RL+": 100, "OAR": 0, "OAR+": 100, "Ours": 0, "Com.": 100
        }.items()
    }  # fmt: skip
    found = figures_of(numbered.table_11(setting))[NAME]
    assert found["OAR+ − OAR"] == (100, 100, 100)
    assert found["OAR+ − RL+"] == (0, 0, 0)
    assert found["OAR − best"] == (-100, -100, -100)  # relay+ is the best fixed protocol
    assert found["Com. − OAR"] == (100, 100, 100)


def test_table_6_is_the_interaction(table):
    # Two-owner: +1/2 and 0; single-owner: -1 and +1. See test_comparison for the interval.
    assert table(numbered.table_6) == {"Relay": (25, -100, 150)}


def test_table_7_counts_first_runs_of_two_owner_questions(table):
    # fan-out: w1 abstains, w2 has another row. relay: w1 is right, w2 stops.
    assert table(numbered.table_7) == {
        "Fan-out / Correct": 0, "Fan-out / Abst.": 50, "Fan-out / Wrong": 50, "Fan-out / Stop.": 0,
        "Relay / Correct": 50, "Relay / Abst.": 0, "Relay / Key": 0, "Relay / No key": 0,
        "Relay / Stop.": 50,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "keyed", "outcome"),
    [
        ({"outcome": "answered", "rows": [[9]]}, True, "Key"),
        ({"outcome": "answered", "rows": [[9]]}, False, "No key"),
        ({"outcome": "answered", "rows": []}, True, "Abst."),
        ({"outcome": "abstained"}, True, "Abst."),
    ],
)
def test_table_7_tells_wrong_rows_after_a_key_from_others(
    write_saved, settings_of, figures_of, answer, keyed, outcome
):
    steps = [
        {"owner": "a", "sql": "SELECT k FROM t", "rows": [["k7"]]},
        {"owner": "b", "sql": f"SELECT 1 FROM u WHERE k = '{'k7' if keyed else 'other'}'"},
    ]
    run = {"question": "w", "protocol": "relay", "steps": steps, **answer}
    questions = [{"id": "w", "stratum": "two-owner", "kappa": 2, "rows": [[1]]}]
    found = figures_of(numbered.table_7(settings_of(write_saved(questions, [run]))))[NAME]
    assert {key for key, share in found.items() if share == 100} == {f"Relay / {outcome}"}


def test_table_9_is_of_every_relay_run(table):
    # Of three runs two pass rec7, one of those is right; the third is wrong.
    assert table(numbered.table_9) == {
        "relay / Runs": 3,
        "relay / Key": 66.6667,
        "relay / Accuracy / key": 50,
        "relay / Accuracy / no key": 0,
        "relay / Share": 100,
    }


def test_table_10_goes_by_the_rows_of_the_reference(write_saved, settings_of, figures_of):
    questions = [
        {"id": str(count), "stratum": "single-owner", "rows": [[1]] * count} for count in (20, 21)
    ]
    runs = [
        {"question": str(count), "protocol": protocol, "outcome": "answered", "rows": [[1]] * got}
        for count in (20, 21)
        for protocol, got in (("fan-out", count), ("relay", 20))
    ]
    assert figures_of(numbered.table_10(settings_of(write_saved(questions, runs))))[NAME] == {
        "At most 20 rows / Qs": 1, "At most 20 rows / FO": 100, "At most 20 rows / RL": 100,
        "More than 20 / Qs": 1, "More than 20 / FO": 100, "More than 20 / RL": 0,
    }  # fmt: skip


def test_table_11_is_of_paired_differences(table):
    found = table(numbered.table_11)
    # OAR - FO is 0 1 0 0 0. Of five draws, none is s2 in 33 % and at most three in 99.3 %, at most
    # two in 94 %: 0 and 3/5.
    assert found["OAR − FO"] == (20, 0, 60)
    assert found["OAR − best"] == (20, 0, 60)
    assert found["OAR − RL"][0] == 30  # 1 0 -1/2 0 1
    assert found["Ours − OAR"][0] == 10  # 0 0 1/2 0 0
    assert set(found) == {"OAR − FO", "OAR − best", "OAR − RL", "Ours − OAR", "Ours − best"}


def test_table_12_is_row_level_f1(table):
    # fan-out: s2 has one of two rows, F1 2/3. Relay answers an unanswerable question: 0.
    found = table(numbered.table_12)
    assert found == {
        "Single-owner / FO": 83.3333, "Single-owner / RL": 50,
        "Single-owner / OAR": 100, "Single-owner / Ours": 100,
        "Two-owner / FO": 0, "Two-owner / RL": 25, "Two-owner / OAR": 0, "Two-owner / Ours": 25,
        "All / FO": 53.3333, "All / RL": 30, "All / OAR": 60, "All / Ours": (70, "*"),
    }  # fmt: skip


def test_table_13_is_of_the_saved_drafts(table):
    # Four drafts have a reference cover: s1 and s2 need fan-out, w1 (twice) and w2 relay. The
    # paper's parser relays s2 and one of w1's, ours both of w1's; JOIN and tables those too.
    assert table(numbered.table_13) == {
        "Draft / Prec.": 50, "Draft / Rec.": 33.3333,
        "Accuracy / Oracle": 50, "Accuracy / OAR": 60, "Accuracy / Table": 70,
        "Accuracy / JOIN": 70,
        "Draft (our parser) / Prec.": 66.6667, "Draft (our parser) / Rec.": 66.6667,
        "Accuracy (our parser) / OAR": 70, "Accuracy (our parser) / Table": 70,
    }  # fmt: skip


def test_table_14_routes_by_the_drafts_of_another_model(saved, settings_of, figures_of):
    drafts = [
        {"id": "s1", "sql": "SELECT 1 FROM t"},
        {"id": "w1", "sql": "SELECT 1 FROM t JOIN u"},
        {"id": "n1", "sql": ""},
    ]
    (saved / "drafts").mkdir()
    (saved / "drafts" / "other.jsonl").write_text("\n".join(map(json.dumps, drafts)))
    # s1 by fan-out 1, w1 by relay 1/2, n1 by fan-out 1; the best fixed protocol has 1 0 1 of them.
    # The difference, 0 1/2 0, is drawn three times of three in 1/27: 3.7 % > 2.5 %.
    assert figures_of(numbered.table_14(settings_of(saved)))[NAME] == {
        "other / Best": 40,
        "other / OAR": 60,
        "other / Other drafts / OAR": 83.3333,
        "other / Other drafts / Δ": (16.6667, 0, 50),
        "other / Other drafts / Rec.": 100,
        "other / Other drafts, our parser / OAR": 83.3333,
        "other / Other drafts, our parser / Δ": (16.6667, 0, 50),
        "other / Other drafts, our parser / Rec.": 100,
    }


def test_text_has_the_papers_layout(saved, settings_of):
    assert (
        text(numbered.table_9(settings_of(saved)))
        == """\
Table 9: key passing on two-owner questions
                                  Accuracy
setting   protocol   Runs   Key    key  no key   Share
small, m  relay         3  66.7   50.0     0.0   100.0
Key: runs in which a later query has a literal that another owner returned earlier. Share: correct
runs that passed a key."""
    )
