"""What counts as an acyclic join, who takes part in it, and a small run of the command."""

from __future__ import annotations

import json
from random import Random

import pytest
from oar_bench.cli import app
from oar_bench.reduction.joins import NotAcyclic, read_join
from oar_bench.reduction.measure import Line, Measured, Moved, ratio
from oar_bench.reduction.shapes import OWNER_KINDS, SHAPES, random_join
from typer.testing import CliRunner

COLUMNS = {
    name: [("id", "bigint"), ("k", "bigint"), ("s", "text"), (f"only_{name}", "bigint")]
    for name in ("a", "b", "c")
}


@pytest.mark.parametrize(
    ("statement", "aliases", "composite"),
    [
        ("SELECT 1 FROM a JOIN b ON a.k = b.k", ["a", "b"], False),
        ("SELECT 1 FROM a X, a Y WHERE X.k = Y.id AND X.s = 'p'", ["x", "y"], False),
        ("SELECT 1 FROM a JOIN b USING (k) JOIN c ON c.id = only_b", ["a", "b", "c"], False),
        ("SELECT 1 FROM a JOIN b ON a.k = b.k AND a.s = b.s", ["a", "b"], True),
        # The third equality follows from the others: one class of columns, no ring.
        ("SELECT 1 FROM a, b, c WHERE a.k = b.k AND b.k = c.k AND c.k = a.k", ["a", "b", "c"], False),
        ("SELECT a.s, count(*) FROM a LEFT JOIN b ON b.k = a.k AND b.id > 1 GROUP BY a.s ORDER BY 1",
         ["a", "b"], False),
    ],
)  # fmt: skip
def test_acyclic(statement, aliases, composite):
    join = read_join(statement, COLUMNS)
    assert [o.alias for o in join.occurrences] == aliases
    assert join.composite is composite


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELECT 1 FROM a JOIN b ON a.k = b.k JOIN c ON c.id = b.id AND c.s = a.s", "form a ring"),
        ("SELECT 1 FROM a", "joins nothing"),
        ("SELECT 1 FROM a JOIN b ON a.k < b.k", "not an equality of two columns"),
        ("SELECT 1 FROM a JOIN b ON a.k = b.k OR a.id = b.id", "not an equality of two columns"),
        ("SELECT 1 FROM a JOIN b ON a.k = b.k + 1", "not an equality of two columns"),
        ("SELECT 1 FROM a, b WHERE a.k = 1", "with no other"),
        ("SELECT 1 FROM a NATURAL JOIN b", "NATURAL"),
        ("SELECT 1 FROM a JOIN elsewhere e ON e.k = a.k", "no table of the organisation"),
        ("SELECT 1 FROM a JOIN b ON a.k = b.k WHERE EXISTS (SELECT 1 FROM c)", "more than one SELECT"),
        ("SELECT 1 FROM a UNION SELECT 1 FROM b", "more than one SELECT"),
        ("SELECT 1 FROM a JOIN b ON k = 1", "cannot be told apart"),
        ("SELEC 1", "does not parse"),
    ],
)  # fmt: skip
def test_not_acyclic(statement, why):
    with pytest.raises(NotAcyclic, match=why):
        read_join(statement, COLUMNS)


def test_counting_keeps_from_and_where_alone():
    join = read_join(
        "SELECT DISTINCT a.s FROM a LEFT JOIN b ON a.k = b.k WHERE a.id > 2 GROUP BY 1 LIMIT 3",
        COLUMNS,
    )
    assert join.counting == (
        'SELECT COUNT(DISTINCT "a".ctid), COUNT(DISTINCT "b".ctid) '
        "FROM a LEFT JOIN b ON a.k = b.k WHERE a.id > 2"
    )


@pytest.mark.parametrize(
    ("sent", "taking_part", "found"), [(6, 3, 2.0), (3, 3, 1.0), (0, 0, 1.0), (4, 0, None)]
)
def test_ratio(sent, taking_part, found):
    assert ratio(sent, taking_part) == found


def _line(full, forward):
    moved = {"full": Moved(*full), "forward": Moved(*forward)}
    return Line(1, 10, moved=moved)


def test_lines_add_up_before_they_are_divided():
    one, other = Measured(), Measured()
    one.line("x").add(_line((1, 1), (9, 1)))
    other.line("x").add(_line((5, 3), (7, 1)))
    one.add(other)
    line = one.lines["x"]
    assert (line.statements, line.rows_held) == (2, 20)
    assert (line.ratio("full"), line.ratio("forward")) == (1.5, 8.0)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_join_drawn_is_acyclic_and_of_several_owners(shape):
    for seed in range(20):
        world, statement = random_join(Random(seed), shape, "w", 30, OWNER_KINDS)
        columns = {t.name: [(c.name, c.type) for c in t.columns] for t in world.tables}
        join = read_join(statement, columns)
        assert shape.tables[0] <= len(join.occurrences) <= shape.tables[1]
        assert join.composite is shape.composite
        assert len({owner for table in world.tables for owner in table.held}) >= 2
        assert list(world.owners.values())[:2] == ["postgres", "sqlite"]


def test_command(benchmark_directory):
    arguments = ["reduction", "--count", "2", "--rows", "40", "--data", str(benchmark_directory)]
    result = CliRunner().invoke(app, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    found = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 0, result.stdout
    assert found["failures"] == 0
    assert set(found["owner_kinds"]) >= {"postgres", "sqlite"}
    assert set(found["joins"]) == {*(shape.name for shape in SHAPES), "toy"}
    for name, line in found["joins"].items():
        assert line["full"]["rows"] == line["full"]["taking_part"], name
        assert line["full"]["rows"] <= line["forward"]["rows"]
        assert line["forward"]["key_values"] == 0
    # Question 2 joins song, order and label; 4 joins label and order by nothing.
    assert found["joins"]["toy"]["statements"] == 1
    assert found["left_out"]["a table is joined with no other by equal columns"] == 1
