"""Tables of which groups are shown: what leaves, and what is said of the rest."""

from __future__ import annotations

import psycopg
import pytest

VISITS = (
    'id bigint primary key, person bigint, city text, illness text, at timestamp, cost bigint, "Art" text',
    [
        (n, n % 12, "Oslo" if n < 20 else "Rome" if n < 23 else "Rome" if n < 28 else None,
         "flu" if n % 3 else "gout", f"2026-0{1 + n % 4}-1{n % 9} 10:00", n * 10, "x")
        for n in range(1, 30)
    ] + [(40, 3, "Bern", "flu", "2026-01-01 00:00", 5, "y"), (41, 4, "Bern", "pox", "2026-02-01 00:00", 6, "y"),
         (42, None, "Bonn", "flu", None, 7, "z"), (43, 5, "Genf", None, "2026-03-01 00:00", None, "z")],
)  # fmt: skip
PEOPLE = (
    "person bigint, name text, born bigint",
    [(n, f"P{n}", 1950 + n) for n in range(12)] + [(99, "nobody", 1900)],
)
TRIPS = (
    "person bigint, km bigint",
    [(1, 5), (2, 5), (1, 7), (1, 7), (None, 7), (3, 9), (4, 9), (5, 9)],
)
GRANTS = "key_disclosure: [{column: '*', to: ['*']}]\n"
NORTH = (
    """\
version: 1
tables:
  trips: {min_group: {entity: person, size: 2}}
  visits:
    min_group: {entity: person, size: 4}
    columns: {Art: {mask: null}}
""".replace("Art", "'\"Art\"'")
    + GRANTS
)
RULE = "north/tables.visits.min_group"

# What {} stands for is written for the merged tables alone: what the rule makes of the statement.
SHOWN = [
    "SELECT city, count(*) FROM visits v GROUP BY city {h}",
    "SELECT v.city, sum(cost), avg(cost), count(cost), count(DISTINCT illness) FROM visits v GROUP BY v.city {h}",
    "SELECT city AS c, count(*) AS n FROM visits v GROUP BY c {h} ORDER BY n DESC, c LIMIT 1",
    "SELECT city, count(*) FROM visits v GROUP BY 1 {h} ORDER BY 2 OFFSET 1",
    "SELECT city, illness, count(*) FROM visits v WHERE cost > 30 AND NOT city = 'Bern' GROUP BY 1, 2 {h}",
    "SELECT count(*), sum(cost) FROM visits v {h}",
    "SELECT count(*) FROM visits v WHERE person = 3 {h}",
    "SELECT count(*) FROM visits v WHERE cost < 0 {h}",
    "SELECT DISTINCT city FROM visits v {g}",
    "SELECT DISTINCT count(*) FROM visits v GROUP BY city {h}",
    "SELECT city FROM visits v GROUP BY city {h}",
    "SELECT upper(city) || '!', round(avg(cost), 1)::text, 2 * count(*) FROM visits v GROUP BY city {h}",
    "SELECT coalesce(city, '?'), CASE WHEN count(*) > 8 THEN 'many' ELSE 'few' END FROM visits v GROUP BY city {h}",
    "SELECT date_trunc('month', at) AS month, count(*) FROM visits v GROUP BY 1 {h} ORDER BY month",
    "SELECT extract(year FROM at), at::date, count(*) FROM visits v GROUP BY extract(year FROM at), at::date {h}",
    "SELECT CAST(date_trunc('month', v.at) AS date), count(*) FROM visits v GROUP BY CAST(date_trunc('month', v.at) AS date) {h}",
    "SELECT city, count(*) FROM visits v GROUP BY city HAVING {a} count(*) > 9",
    "SELECT city, count(*) FROM visits v GROUP BY city HAVING {a} (sum(cost) > 9 OR city = 'Bern') -- so",
    "SELECT city, count(*) FROM visits v WHERE illness LIKE 'f%' OR illness IS NULL GROUP BY city {h}",
    "SELECT city, count(*) FROM visits v WHERE at BETWEEN '2026-01-01' AND '2026-03-01'::timestamp AND id <> cost GROUP BY city {h}",
    "SELECT name, count(*) FROM visits v JOIN people USING (person) GROUP BY name {h}",
    "SELECT city, count(*), sum(born) FROM visits v JOIN people p ON p.person = v.person AND born > 1950 GROUP BY city {h}",
    "SELECT city, count(*), avg(born) FROM visits v LEFT JOIN people p ON p.person = v.person GROUP BY city {h}",
    "SELECT born > 0, count(*) FROM people p LEFT JOIN visits v ON p.person = v.person GROUP BY born {h}",
    "SELECT v.city, count(*) FROM visits v JOIN (SELECT person, name FROM people WHERE born > 1952) AS p ON p.person = v.person GROUP BY v.city {h}",
    "SELECT city, count(*) FROM visits v WHERE person IN (SELECT person FROM people WHERE born > 1952) GROUP BY city {h}",
    "SELECT city, count(*) FROM visits v WHERE EXISTS (SELECT 1 FROM people p WHERE p.person = v.person AND born > 1952) GROUP BY city {h}",
    "SELECT v.city, count(*) FROM visits v JOIN visits w ON w.city = v.city GROUP BY v.city HAVING {a} {w} true",
    "SELECT v.city, count(*) FROM visits v JOIN visits w ON w.city = v.city AND w.person = 1 GROUP BY v.city HAVING {a} {w} true",
    "SELECT q.city, q.n FROM (SELECT city, count(*) AS n FROM visits v GROUP BY city {h}) AS q WHERE q.n > 1 ORDER BY q.city",
    "SELECT * FROM (SELECT city, count(*) AS n FROM visits v GROUP BY city {h}) AS q LIMIT 5",
    "SELECT to_json(q) FROM (SELECT city, count(*) AS n FROM visits v GROUP BY city {h}) AS q",
    "WITH g AS (SELECT city, count(*) AS n FROM visits v GROUP BY city {h}) SELECT n, city FROM g ORDER BY 1",
    "WITH g(c, n) AS (SELECT city, count(*) FROM visits v GROUP BY city {h}) SELECT * FROM (SELECT c FROM g) AS h",
    "SELECT q.town, count(*) FROM (SELECT city AS town, v.person FROM visits v) AS q GROUP BY q.town {q}",
    "SELECT r.town, count(*) FROM (SELECT * FROM (SELECT city AS town, person FROM visits) AS q) AS r GROUP BY r.town {r}",
    "SELECT r.town, count(*), sum(r.born) FROM (SELECT p.*, q.town FROM (SELECT city AS town, person AS who FROM visits) AS q"
    " JOIN people p ON p.person = q.who) AS r GROUP BY r.town {r}",
    "SELECT v.city, count(*) FROM visits AS v(id, who) GROUP BY v.city {x}",
    "SELECT count(*) FROM visits v {h}",
    "SELECT count(*) FROM visits v WHERE false {h}",
    "SELECT q.п FROM (SELECT city AS п, 'Зима' AS z FROM visits v WHERE city <> 'Пермь — ВЕСНА' /* я */"
    " GROUP BY city {h} ORDER BY 'ё' || city) AS q -- конец",
    "SELECT city, count(*) FROM visits AS v WHERE NOT EXISTS (SELECT FROM people p WHERE p.person = v.person"
    " AND (p.born < 1951 OR v.illness = 'flu' AND p.name LIKE 'P%')) GROUP BY city {h}",
    "SELECT city, count(1), sum(1), sum(CAST(cost AS numeric)), avg(cost::float8) FROM visits v GROUP BY city {h}",
    "SELECT city, count(*) FROM visits v WHERE at >= to_timestamp('2026-01-02 00:00:00.000000',"
    " 'YYYY-MM-DD HH24:MI:SS.US') AND at < now() AND at <= CURRENT_TIMESTAMP GROUP BY city {h}",
    'SELECT "Art", count(*) FROM visits v GROUP BY "Art" {h}',
    "SELECT shop.visits.city, count(*) FROM shop.visits GROUP BY shop.visits.city {s}",
]  # fmt: skip

REFUSED = [
    "SELECT * FROM visits",
    "SELECT city FROM visits",
    "SELECT id FROM visits WHERE id = 1",
    "SELECT v FROM visits v",
    "TABLE visits",
    "SELECT 1 FROM visits",
    "SELECT city, count(*) OVER () FROM visits",
    "SELECT city, rank() OVER (ORDER BY count(*)) FROM visits GROUP BY city",
    "SELECT DISTINCT ON (city) city FROM visits",
    "SELECT DISTINCT lower(city) FROM visits",
    # aggregates that tell the value of one, or look at a part
    "SELECT max(cost) FROM visits",
    "SELECT city, array_agg(person) FROM visits GROUP BY city",
    "SELECT string_agg(illness, ',') FROM visits",
    "SELECT json_agg(visits) FROM visits",
    "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY cost) FROM visits",
    "SELECT count(*) FILTER (WHERE person = 3) FROM visits",
    "SELECT sum(CASE WHEN person = 3 THEN cost END) FROM visits",
    "SELECT sum(cost + 0) FROM visits",
    "SELECT sum(cost::int) FROM visits",
    "SELECT sum(cost::numeric(3)) FROM visits",
    "SELECT sum(illness::int8) FROM visits",
    "SELECT count(*) FROM visits WHERE at > to_timestamp('2026/01/02', 'YYYY/MM/DD')",
    "SELECT count(*) FROM visits WHERE at > to_timestamp(illness, 'YYYY-MM-DD')",
    "SELECT sum(DISTINCT cost) FROM visits",
    "SELECT count(v.*) FROM visits v",
    "SELECT v.count FROM visits v",
    "SELECT sum((v).cost) FROM visits v",
    "SELECT public.count(cost) FROM visits",
    "SELECT bool_or(person = 3) FROM visits",
    # sets of groups, of which one is the rest of another
    "SELECT city, count(*) FROM visits GROUP BY ROLLUP (city)",
    "SELECT city, count(*) FROM visits GROUP BY GROUPING SETS ((city), ())",
    # keys that are made of something
    "SELECT count(*) FROM visits GROUP BY lower(city)",
    "SELECT count(*) FROM visits GROUP BY CASE WHEN person = 3 THEN 1 END",
    "SELECT 1 / (person - 3) AS k, count(*) FROM visits GROUP BY k",
    "SELECT 1 / (person - 3), count(*) FROM visits GROUP BY 1",
    "SELECT illness::date, count(*) FROM visits GROUP BY 1",
    "SELECT date_trunc('millennium', at), count(*) FROM visits GROUP BY 1",
    "SELECT date_trunc(city, at), count(*) FROM visits GROUP BY 1",
    # conditions that may fail for a row, or tell of it
    "SELECT count(*) FROM visits WHERE 1 / (person - 3) = 1",
    "SELECT count(*) FROM visits WHERE illness::int = 1",
    "SELECT count(*) FROM visits WHERE person = 3 AND at > '2026-01-01'::text::timestamp",
    "SELECT count(*) FROM visits WHERE illness LIKE 'flu\\'",
    "SELECT count(*) FROM visits WHERE illness LIKE city",
    "SELECT count(*) FROM visits WHERE pg_sleep(person) IS NULL",
    "SELECT count(*) FROM visits v WHERE v IS NOT NULL AND ROW(v.*) IS NULL",
    "SELECT count(*) FROM visits JOIN people p ON p.born / visits.person = 3",
    "SELECT count(*) FROM visits v, LATERAL (SELECT 1 / v.person AS x) AS l",
    "SELECT sum(x) FROM visits v JOIN (SELECT person, 1 / (born - 1953) AS x FROM people) AS p USING (person)",
    "SELECT count(*) FROM visits, generate_series(1, person)",
    "SELECT count(*) FROM visits TABLESAMPLE SYSTEM (10)",
    "SELECT count(*) FROM visits WHERE person = (SELECT max(person) FROM people)",
    "SELECT count(*) FROM visits v WHERE EXISTS (SELECT 1 / (v.person - 3))",
    "SELECT city, (SELECT name FROM people LIMIT 1) FROM visits GROUP BY city",
    "SELECT city, count(*) FROM visits GROUP BY city LIMIT (SELECT count(*) FROM people)",
    # joins that weigh the rows of one person, to be read in a sum
    "SELECT count(m.one) FROM visits v LEFT JOIN mine m ON m.person = v.person",
    "SELECT sum(m.one) FROM visits v JOIN mine m USING (person)",
    "SELECT count(*) FROM visits v JOIN mine m USING (person)",
    "SELECT count(*) FROM visits v, (SELECT person FROM mine) AS m WHERE m.person = v.person",
    "SELECT count(*) FROM visits v JOIN people p ON p.born = 1950 OR (v.person = 3 AND p.born > 0)",
    "SELECT count(*) FROM visits v JOIN people p ON p.person >= v.person",
    "SELECT count(*) FROM visits v LEFT JOIN people p ON v.person = 3",
    "SELECT count(*) FROM visits v LEFT JOIN people p ON p.person = v.person AND v.illness = 'gout'",
    "SELECT count(*) FROM people p RIGHT JOIN visits v ON v.person = 3",
    "SELECT count(*) FROM people p FULL JOIN visits v ON p.person = v.person AND p.born > 1",
    "SELECT count(*) FROM visits v, people p WHERE NOT (v.person = 3 AND p.born > 1950)",
    "SELECT count(*) FROM visits v, people p WHERE EXISTS"
    " (SELECT FROM people q WHERE q.born = 1950 AND (v.person = 3 OR p.born = 1951))",
    "SELECT count(*) FROM visits v, people p WHERE p.person IN (SELECT q.person FROM people q"
    " WHERE v.person = 3 OR q.born = 1950)",
    "SELECT count(x.born) FROM (SELECT v.city, born FROM visits v JOIN people p ON v.person = 3"
    " OR p.born = 1950) AS x",
    # what else than an owner's picks rows: with each it could call a function of the session's own
    "SELECT count(*) FROM visits v WHERE person IN (SELECT person FROM mine)",
    "SELECT count(*) FROM visits v WHERE id = 1 OR EXISTS (SELECT FROM mine m WHERE m.person = v.person)",
    "SELECT count(*) FROM visits v WHERE EXISTS (SELECT FROM told t WHERE t.person = v.person)",
    "WITH mine AS (SELECT person FROM generate_series(1, 9) AS person WHERE pg_sleep(0) IS NOT NULL) SELECT n"
    " FROM (SELECT count(*) AS n FROM visits v WHERE v.person IN (SELECT person FROM mine)) AS q",
    # constants of types to which PostgreSQL casts the column, if it can
    "SELECT count(*) FROM visits WHERE illness = 'pox' AND cost = 5::oid",
    "SELECT count(*) FROM visits WHERE illness = 'pox' AND cost IN (1, '5'::regclass)",
    "SELECT count(*) FROM visits WHERE cost = ANY('{5}'::oid[])",
    # rows that pick other rows
    "SELECT name FROM people WHERE person IN (SELECT person FROM visits)",
    "SELECT name FROM people p WHERE EXISTS (SELECT FROM visits v WHERE v.person = p.person)",
    "SELECT name FROM people p WHERE EXISTS (SELECT count(*) FROM visits v WHERE v.person = p.person)",
    "SELECT name, (SELECT count(*) FROM visits v WHERE v.person = p.person) FROM people p",
    "SELECT name FROM people LEFT JOIN visits USING (person)",
    "SELECT name FROM people p JOIN (SELECT person, count(*) AS n FROM visits GROUP BY person) AS v USING (person)",
    "SELECT (SELECT count(*) FROM visits)",
    "SELECT ARRAY(SELECT city FROM visits GROUP BY city)",
    # what would make one number of groups, of which some are missing
    "SELECT sum(n) FROM (SELECT city, count(*) AS n FROM visits GROUP BY city) AS q",
    "SELECT count(*) FROM (SELECT DISTINCT city FROM visits) AS q",
    "SELECT a.n - b.n FROM (SELECT count(*) AS n FROM visits) AS a,"
    " (SELECT count(*) AS n FROM visits WHERE person <> 3) AS b",
    "SELECT city FROM visits GROUP BY city UNION SELECT name FROM people",
    "SELECT city FROM visits GROUP BY city EXCEPT SELECT city FROM visits WHERE person <> 3 GROUP BY city",
    "WITH g AS (SELECT city, count(*) AS n FROM visits GROUP BY city) SELECT * FROM g a, g b",
    "WITH RECURSIVE g AS (SELECT city FROM visits GROUP BY city) SELECT * FROM g",
    "SELECT q.c, sum(q.n) OVER () FROM (SELECT city AS c, count(*) AS n FROM visits GROUP BY city) AS q",
    # names that mean two things
    "SELECT r.k, count(*) FROM (SELECT q.p AS k FROM trips AS q(p, person)) AS r GROUP BY r.k",
    "SELECT r.b, count(*) FROM (SELECT * FROM (SELECT km FROM trips) AS q, people) AS r(a, b) GROUP BY r.b",
    "SELECT t.km, count(*) FROM trips AS t(who) GROUP BY t.km",
    "SELECT j.city, count(*) FROM (visits JOIN people USING (person)) AS j GROUP BY j.city",
    "EXPLAIN ANALYZE SELECT city, count(*) FROM visits GROUP BY city",
    "INSERT INTO kept SELECT city, count(*) FROM visits GROUP BY city",
    "SELECT city, count(*) INTO TEMP other FROM visits GROUP BY city",
]  # fmt: skip


def on_merged(statement: str) -> str:
    enough = "count(DISTINCT {}.person) >= 4"
    made = {
        "h": "HAVING " + enough.format("v"),
        "a": enough.format("v") + " AND",
        "w": enough.format("w") + " AND",
        "g": "GROUP BY city HAVING " + enough.format("v"),
        "q": "HAVING " + enough.format("q"),
        "x": "HAVING count(DISTINCT v.who) >= 4",
        "r": "HAVING " + enough.format("r"),
        "s": "HAVING " + enough.format("visits"),
    }
    return statement.format(**made).replace('"Art"', "NULL::text").replace("shop.", "")


def on_proxy(statement: str) -> str:
    return statement.format(**dict.fromkeys("hawgqrsx", ""))


@pytest.fixture(scope="module")
def owners(request, two_owners):
    tables = {"north": {"visits": VISITS, "trips": TRIPS}, "south": {"people": PEOPLE}}
    with two_owners(request, "sqlite", tables) as opened:
        yield opened


@pytest.fixture(scope="module")
def asked(owners):
    client, merged = owners
    connection = client(north=NORTH)
    connection.execute("CREATE TEMP TABLE kept (city text, n bigint)")
    connection.execute("CREATE TEMP TABLE mine AS SELECT 3::bigint AS person, 1 AS one")
    connection.execute("CREATE TEMP VIEW told AS SELECT person FROM mine WHERE random() < 2")
    said = []
    connection.add_notice_handler(lambda d: said.append((d.message_primary, d.message_detail)))
    return connection, merged, said


@pytest.mark.parametrize("statement", SHOWN)
def test_groups_that_are_large_enough_are_shown_and_the_rest_is_said(asked, statement):
    connection, merged, said = asked
    said.clear()
    found = connection.execute(on_proxy(statement)).fetchall()
    expected = merged.execute(on_merged(statement)).fetchall()
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    ((told, detail),) = said
    assert told.startswith("groups without at least 4 different person")
    assert detail == f"rule {RULE}"


@pytest.mark.parametrize("statement", REFUSED)
def test_everything_else_is_refused(asked, statement):
    connection, _, _ = asked
    with pytest.raises(psycopg.Error) as refused:
        connection.execute(statement)
    error = refused.value
    assert error.sqlstate in ("42501", "42883", "0A000"), str(error)
    if error.sqlstate == "42501":
        assert ".min_group" in error.diag.message_detail


@pytest.mark.parametrize(
    ("statement", "rows", "said"),
    [
        # Of people in groups that are too small there are 1 of Bern and Genf each, and Bonn's is nobody.
        ("SELECT km FROM trips GROUP BY km", [(5,), (9,)], "none, or some"),
        ("SELECT km FROM trips WHERE person < 3 AND km > 5 GROUP BY km", [], "none, or some"),
        ("SELECT person FROM trips GROUP BY person", [], "shown: 6"),
        ("SELECT person FROM trips WHERE person = 3 GROUP BY person", [], "none, or some"),
        ("SELECT person, km FROM trips WHERE person < 3 GROUP BY person, km", [], "shown: 3"),
        ("SELECT km FROM trips WHERE person = 1 OR km = 5 GROUP BY km", [(5,)], "none, or some"),
        ("SELECT count(*) FROM trips WHERE km < 6", [(2,)], "none, or some"),
        ("SELECT count(*) FROM trips WHERE km = 7", [], "none, or some"),
        ("SELECT count(*) FROM trips WHERE false", [], "none, or some"),
    ],
)
def test_how_many_groups_are_missing_is_told_of_enough_entities_only(asked, statement, rows, said):
    connection, _, notices = asked
    notices.clear()
    assert sorted(connection.execute(statement).fetchall()) == rows
    ((told, _),) = notices
    assert said in told


def test_both_rules_hold_where_two_such_tables_are_joined(asked):
    connection, _, notices = asked
    notices.clear()
    statement = "SELECT km, count(*) FROM trips t JOIN visits v ON v.person = t.person GROUP BY km"
    assert connection.execute(statement).fetchall() == []
    ((told, detail),) = notices
    assert "at least 2 different person and 4 different person" in told
    assert detail == f"rule north/tables.trips.min_group, {RULE}"


def test_what_is_selected_is_evaluated_for_groups_that_are_shown_only(asked):
    connection, _, _ = asked
    # km 7 has one person, so that each of these would fail for it, and say that it is there.
    for statement in (
        "SELECT km, 1 / (km - 7) FROM trips GROUP BY km",
        "SELECT km FROM trips GROUP BY km HAVING 1 / (km - 7) < 5",
        "SELECT km FROM trips GROUP BY km ORDER BY 1 / (km - 7)",
        "SELECT q.km FROM (SELECT km FROM trips GROUP BY km) AS q WHERE 1 / (q.km - 7) < 5",
        "WITH q AS (SELECT km FROM trips GROUP BY km) SELECT km FROM q WHERE 1 / (q.km - 7) < 5",
    ):
        assert sorted(row[0] for row in connection.execute(statement)) == [5, 9], statement


@pytest.mark.parametrize("binary", [False, True])
def test_parameters_cursors_and_copies_are_as_the_select_in_them(asked, binary):
    connection, _, notices = asked
    notices.clear()
    with connection.cursor(binary=binary) as cursor:
        found = cursor.execute(
            "SELECT city, count(*) FROM visits WHERE cost > %s AND city LIKE %s GROUP BY city"
            " HAVING count(*) > %s", (20, "O%", 3), prepare=True,
        ).fetchall()  # fmt: skip
    assert found == [("Oslo", 17)]
    with connection.transaction():
        connection.execute("DECLARE c CURSOR FOR SELECT km FROM trips GROUP BY km ORDER BY km")
        assert connection.execute("FETCH 1 FROM c").fetchall() == [(5,)]
        assert connection.execute("FETCH ALL FROM c").fetchall() == [(9,)]
    with connection.cursor().copy(
        "COPY (SELECT km, sum(person) FROM trips GROUP BY km ORDER BY 1) TO STDOUT"
    ) as copied:
        assert b"".join(copied) == b"5\t3\n9\t12\n"
    connection.execute("CREATE TEMP TABLE made AS SELECT km FROM trips GROUP BY km")
    assert connection.execute("SELECT km FROM made ORDER BY km").fetchall() == [(5,), (9,)]
    connection.execute("DROP TABLE made")
    assert len(notices) == 4


def test_what_is_aggregated_has_values_of_enough_entities(asked):
    connection, _, _ = asked
    # Of the three of km 9 one alone has been to Bern, of the two of km 5 both are in Oslo.
    joined = "FROM trips t LEFT JOIN people p ON p.person = t.person AND p.name = 'P3' GROUP BY km"
    assert connection.execute(f"SELECT km, count(*) {joined}").fetchall() == [(5, 2), (9, 3)]
    assert connection.execute(f"SELECT km, count(p.born) {joined}").fetchall() == []
    assert connection.execute(f"SELECT km {joined} HAVING sum(p.born) > 0").fetchall() == []
    assert connection.execute(f"SELECT km {joined} ORDER BY count(p.born)").fetchall() == []


def test_types_of_the_session_by_built_in_names_are_refused(asked):
    connection, _, notices = asked
    by = "SELECT at::date, count(*) FROM visits GROUP BY at::date"
    with connection.transaction(force_rollback=True):
        connection.execute(
            "CREATE FUNCTION pg_temp.tell(v pg_catalog.date) RETURNS bool LANGUAGE plpgsql"
            " AS $$BEGIN RAISE NOTICE 'told %', v; RETURN true; END$$"
        )
        connection.execute(
            "CREATE DOMAIN pg_temp.date AS pg_catalog.date CHECK (pg_temp.tell(VALUE))"
        )
        notices.clear()
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="temporary types"):
            connection.execute(by)
        assert not any("told" in told for told, _ in notices)
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE DOMAIN pg_temp.d AS text CHECK (length(VALUE) > 0)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT count(*) FROM visits WHERE city = 'x'::pg_temp.d")
    assert connection.execute(by).fetchall() == []


def test_a_pattern_that_ends_with_an_escape_is_refused_as_a_parameter_too(asked):
    connection, _, _ = asked
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="pattern"):
        connection.execute("SELECT count(*) FROM visits WHERE city LIKE %s", ("Os\\",))


def test_what_is_explained_and_kept_tells_no_number_of_rows(asked):
    connection, _, notices = asked
    statement = "SELECT km FROM trips WHERE person = 3 GROUP BY km"
    plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {statement}"))
    assert (
        "Groups shown: with at least 2 different person (rule north/tables.trips.min_group)" in plan
    )
    assert "Rule: north/tables.trips.min_group" in plan
    notices.clear()
    connection.execute("SET oar.progress = on")
    connection.execute(statement)
    connection.execute("RESET oar.progress")
    assert len(notices) == 1
    steps = connection.execute(
        "SELECT rows, keys, microseconds, rules FROM oar.steps ORDER BY step DESC LIMIT 1"
    ).fetchone()
    assert steps[:3] == (None, None, None)
    assert "north/tables.trips.min_group" in steps[3]


def test_how_much_another_owner_sends_does_not_depend_on_single_rows(owners):
    client, _ = owners
    connection = client(north=NORTH, south="version: 1\nlimits: {max_rows: 8}\n" + GRANTS)
    told = set()
    for illness in ("pox", "flu", "none"):
        statement = (
            "SELECT name, count(*) FROM visits JOIN people USING (person)"
            f" WHERE illness = '{illness}' GROUP BY name"
        )
        for most in ("100", "0"):
            connection.execute(f"SET oar.max_keys = {most}")
            with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
                connection.execute(statement)
            told.add((refused.value.diag.message_primary, refused.value.diag.message_detail))
    assert len(told) == 1
    plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {statement}"))
    assert f"what it is joined with is shown in groups only (rule {RULE})" in plan
    # Keys the other way do not depend on them.
    connection.execute("RESET oar.max_keys")
    plan = connection.execute(f"EXPLAIN {statement.replace('WHERE', 'WHERE born < 1952 AND')}")
    assert "Route: relay" in "\n".join(row[0] for row in plan)


def test_the_comment_on_the_table_says_what_is_shown_of_it(asked):
    connection, _, _ = asked
    found = connection.execute("SELECT comment FROM oar.tables WHERE name = 'trips'").fetchone()
    assert found == ("groups of at least 2 different person are shown, and no rows",)
