"""What may be done with columns that an owner restricts: a reviewer's decision on each statement."""

from __future__ import annotations

import time

import psycopg
import pytest

STAFF = (
    'id bigint primary key, name text, ssn text, salary bigint, grade bigint, "Geheim" text',
    [
        (1, "Ann", "s1", 50, 3, "x"), (2, "Bob", "s2", 900, 1, "y"), (3, "Cid", "s3", 60, 2, None),
        (4, "Dee", None, 70, 3, "x"), (5, "Eve", "s5", None, None, "z"),
    ],
)  # fmt: skip
CLAIMS = (
    "id bigint, person text, amount bigint, ssn text",
    [(10, "s1", 50, "a"), (11, "s1", 60, "b"), (12, "s2", 900, "s1"), (13, "s9", 1, None),
     (14, None, 70, "s3")],
)  # fmt: skip
FILES = ("id bigint, secret text", [(n, "s") for n in range(30_000)])
NORTH = """\
version: 1
tables:
  files: {columns: {secret: {output: false}}}
  staff:
    columns:
      ssn: {output: false}
      '"Geheim"': {output: false}
      salary: {output: aggregate_only, functions: [sum, avg, count]}
      grade: {filter: false}
key_disclosure: [{column: '*', to: ['*']}]
"""
SSN, SALARY, GRADE = (f"north/tables.staff.columns.{c}" for c in (
    "ssn.output", "salary.output", "grade.filter"))  # fmt: skip
GEHEIM = 'north/tables.staff.columns."Geheim".output'

ALLOWED = [
    # a column that may not be put out still filters and joins
    "SELECT name FROM staff WHERE ssn = 's1'",
    "SELECT name FROM staff WHERE 's1' = ssn OR id = 4",
    "SELECT name FROM staff WHERE ssn IN ('s1', 's2') AND NOT ssn = 's2'",
    "SELECT name FROM staff WHERE ssn IS NULL",
    "SELECT name FROM staff WHERE ssn LIKE 's%' AND ssn BETWEEN 's1' AND 's3'",
    "SELECT name FROM staff WHERE ssn = ANY (ARRAY['s1', 's5'])",
    "SELECT name FROM staff WHERE ssn IS DISTINCT FROM 's1'",
    "SELECT count(*) FROM staff WHERE ssn > 's1'",
    "SELECT name, amount FROM staff JOIN claims ON person = staff.ssn",
    "SELECT name, amount FROM staff, claims WHERE staff.ssn = person AND amount > 55",
    "SELECT name, amount FROM staff LEFT JOIN claims ON claims.person = staff.ssn",
    "SELECT name, sum(amount) FROM staff JOIN claims ON person = staff.ssn GROUP BY name",
    "SELECT staff.name FROM staff JOIN claims USING (ssn)",
    "SELECT name FROM staff WHERE ssn IN (SELECT person FROM claims)",
    "SELECT name FROM staff WHERE ssn = ANY (SELECT person FROM claims WHERE amount > 55)",
    "SELECT name FROM staff s WHERE EXISTS (SELECT FROM claims c WHERE c.person = s.ssn)",
    "SELECT name FROM staff s WHERE NOT EXISTS (SELECT 1 FROM claims c WHERE c.person = s.ssn)",
    "SELECT claims.id FROM claims WHERE person IN (SELECT ssn FROM staff)",
    "SELECT claims.id FROM claims WHERE person NOT IN (SELECT ssn FROM staff WHERE ssn IS NOT NULL)",
    "SELECT amount FROM claims JOIN (SELECT ssn AS number, name FROM staff) AS q ON person = number",
    "WITH w AS (SELECT ssn, name FROM staff) SELECT name, amount FROM w JOIN claims c ON person = w.ssn",
    "SELECT q.name FROM (SELECT * FROM staff) AS q",
    "SELECT q.name FROM (TABLE staff) AS q WHERE q.ssn = 's1'",
    "SELECT x.b FROM staff AS x(a, b, c) WHERE x.c = 's1'",
    "SELECT id FROM staff WHERE name IN ('Ann') AND \"Geheim\" = 'x'",
    "SELECT id FROM claims WHERE ssn = 'a'",
    "SELECT ssn FROM claims",
    "SELECT c.ssn, s.name FROM claims c CROSS JOIN staff s",
    "SELECT c.* FROM claims c JOIN staff s ON s.id = c.id",
    "SELECT name FROM staff WHERE id IN (SELECT id FROM staff WHERE ssn = 's1')",
    "SELECT count(*) FROM (SELECT DISTINCT ssn FROM staff) AS q",
    "SELECT count(*) FROM (SELECT ssn FROM staff UNION SELECT person FROM claims) AS q",
    "SELECT EXISTS (SELECT FROM staff WHERE ssn = 's1')",
    "SELECT (SELECT count(*) FROM staff WHERE ssn = 's1')",
    "SELECT name FROM staff WHERE staff.salary > 55",
    # of no row there is nothing to put out
    "SELECT * FROM staff LIMIT 0",
    "SELECT ssn, grade FROM staff WHERE 1 = 0 ORDER BY grade",
    # aggregates of a column
    "SELECT JSON_ARRAYAGG(grade ORDER BY id) FROM staff",
    "SELECT sum(salary) FROM staff",
    "SELECT pg_catalog.avg(s.salary), count(s.salary), count(*) FROM staff s",
    "SELECT grade, sum(salary) FROM staff GROUP BY grade",
    "SELECT sum(salary) * 2 + 1 AS twice FROM staff WHERE salary < 100",
    "SELECT sum(salary) FILTER (WHERE name <> 'Bob') FROM staff",
    "SELECT name FROM staff GROUP BY name HAVING sum(salary) > 55 ORDER BY sum(salary), name",
    "SELECT q.total + 1 FROM (SELECT name, sum(salary) AS total FROM staff GROUP BY name) AS q"
    " WHERE q.total > 55",
    "SELECT sum(q.salary) FROM (SELECT name, salary FROM staff) AS q",
    "SELECT sum(q.salary) FROM (SELECT salary FROM staff UNION ALL SELECT salary FROM staff) AS q",
    "SELECT id FROM claims WHERE amount < (SELECT avg(salary) FROM staff)",
    # a column that may not filter
    "SELECT grade FROM staff",
    "SELECT name, grade + 1, CASE WHEN grade > 2 THEN 'high' END FROM staff",
    "SELECT grade, count(*) FROM staff GROUP BY grade",
    "SELECT grade, count(*) FROM staff GROUP BY 1",
    "SELECT max(grade), count(DISTINCT grade) FROM staff WHERE ssn LIKE 's%'",
    "SELECT DISTINCT grade FROM staff",
    "SELECT q.grade FROM (SELECT id, grade FROM staff) AS q WHERE q.id < 3",
    "SELECT grade FROM staff UNION ALL SELECT amount FROM claims",
    "SELECT q.name, q.grade FROM staff AS q ORDER BY name",
]  # fmt: skip

REFUSED = [
    # in the answer
    ("SELECT ssn FROM staff", SSN),
    ("SELECT * FROM staff", None),
    ("SELECT staff.* FROM staff", None),
    ("TABLE staff", None),
    ("SELECT staff FROM staff", None),
    ("SELECT s FROM staff AS s", None),
    ("SELECT (s).ssn FROM staff s", None),
    ("SELECT (s).name FROM staff s", None),
    ("SELECT (s.*).ssn FROM staff s", None),
    ("SELECT row_to_json(s) FROM staff s", None),
    ("SELECT s.row_to_json FROM staff s", None),
    ("SELECT ROW(s.*) FROM staff s", None),
    ("SELECT q FROM (SELECT ssn FROM staff) AS q", SSN),
    ("SELECT q::text FROM (SELECT ssn FROM staff) AS q", SSN),
    ("SELECT j.b FROM (staff JOIN claims USING (id)) AS j(a, n, b)", SSN),
    ("SELECT name FROM staff s WHERE s IS NOT NULL", None),
    ("SELECT name FROM staff WHERE (ssn, id) IN (SELECT person, id FROM claims)", SSN),
    ("SELECT name FROM staff, claims WHERE staff.ssn IN (person, 'x')", None),
    ("SELECT name FROM staff, claims WHERE staff.ssn = ANY (ARRAY[person])", SSN),
    ("SELECT name FROM staff WHERE ssn = name", SSN),
    ("SELECT name FROM staff WHERE ssn IS NOT DISTINCT FROM name", SSN),
    ("SELECT grouping(ssn) FROM staff GROUP BY ROLLUP (ssn)", SSN),
    ("SELECT count(*) FROM staff GROUP BY GROUPING SETS ((ssn), ())", SSN),
    ("SELECT count(*) FROM staff GROUP BY ROLLUP ((name, ssn))", SSN),
    ("SELECT * FROM ROWS FROM (unnest((SELECT array_agg(ssn) FROM staff))) AS u", SSN),
    ("SELECT x.v FROM staff, JSON_TABLE(to_jsonb(ssn), '$' COLUMNS (v text PATH '$')) AS x", SSN),
    ("SELECT count(s) FROM staff s", None),
    ("SELECT x.c FROM staff AS x(a, b, c)", SSN),
    ("SELECT c FROM staff AS x(a, b, c)", SSN),
    ('SELECT "ssn" FROM staff', SSN),
    ('SELECT U&"s\\0073n" FROM staff', SSN),
    ('SELECT "Geheim" FROM staff', GEHEIM),
    ("SELECT shop.staff.ssn FROM shop.staff", SSN),
    ("SELECT q.n FROM (SELECT ssn AS n FROM staff) AS q", SSN),
    ("SELECT * FROM (SELECT ssn AS n FROM staff) AS q", SSN),
    ("SELECT q.* FROM staff JOIN LATERAL (SELECT ssn) AS q ON true", SSN),
    ("WITH w AS (SELECT ssn AS n FROM staff) SELECT n FROM w", SSN),
    ("WITH w(n) AS (SELECT ssn FROM staff), v AS (TABLE w) SELECT v.n FROM v", SSN),
    ("SELECT name FROM staff UNION ALL SELECT ssn FROM staff", SSN),
    ("SELECT person FROM claims INTERSECT SELECT ssn FROM staff", SSN),
    ("SELECT person FROM claims EXCEPT SELECT ssn FROM staff", SSN),
    ("SELECT (SELECT max(ssn) FROM staff)", SSN),
    ("SELECT (SELECT s.ssn) FROM staff s", SSN),
    ("SELECT ARRAY(SELECT ssn FROM staff)", SSN),
    ("SELECT a FROM (SELECT array_agg(ssn) AS a FROM staff) AS q", SSN),
    ("SELECT string_agg(ssn, ',') FROM staff", SSN),
    ("SELECT count(ssn) FROM staff", SSN),
    ("SELECT max(ssn) FROM staff", SSN),
    ("SELECT name FROM staff, unnest(ARRAY[ssn]) AS u", SSN),
    ("SELECT u FROM staff, unnest(ARRAY[ssn]) AS u", SSN),
    ("SELECT v.x FROM staff, LATERAL (VALUES (ssn)) AS v(x)", SSN),
    # made something of
    ("SELECT ssn || '' FROM staff", SSN),
    ("SELECT ssn::varchar FROM staff", SSN),
    ("SELECT upper(ssn) FROM staff", SSN),
    ("SELECT ssn = 's1' FROM staff", SSN),
    ("SELECT CASE WHEN ssn = 's1' THEN 1 ELSE 0 END FROM staff", SSN),
    ("SELECT CASE ssn WHEN 's1' THEN 1 END FROM staff", SSN),
    ("SELECT coalesce(ssn, name), nullif(name, ssn) FROM staff", SSN),
    ("SELECT sum(CASE WHEN ssn = 's1' THEN 1 ELSE 0 END) FROM staff", SSN),
    ("SELECT count(*) FILTER (WHERE ssn = 's1') FROM staff", SSN),
    ("SELECT EXISTS (SELECT 1 WHERE s.ssn = 's1') FROM staff s", SSN),
    ("SELECT (SELECT 1 WHERE s.ssn = 's1') FROM staff s", SSN),
    ("SELECT s.ssn IN (SELECT person FROM claims) FROM staff s", SSN),
    ("SELECT l.hit FROM staff s LEFT JOIN LATERAL (SELECT 1 AS hit WHERE s.ssn = 's1') l ON true", SSN),
    ("SELECT c.id FROM staff s LEFT JOIN claims c ON s.ssn = 's1'", SSN),
    ("SELECT name, rank() OVER (ORDER BY ssn) FROM staff", SSN),
    ("SELECT name, count(*) OVER (PARTITION BY ssn) FROM staff", SSN),
    ("SELECT name, count(*) OVER w FROM staff WINDOW w AS (ORDER BY ssn)", SSN),
    ("SELECT array_agg(name ORDER BY ssn) FROM staff", SSN),
    # its order, its groups
    ("SELECT name FROM staff ORDER BY ssn", SSN),
    ("SELECT name FROM staff ORDER BY ssn LIMIT 1", SSN),
    ("SELECT name FROM (SELECT name, ssn AS o FROM staff) AS q ORDER BY o", SSN),
    ("SELECT name FROM (SELECT ssn, name FROM staff ORDER BY 1 LIMIT 1) AS q", SSN),
    ("SELECT count(*) FROM staff GROUP BY ssn", SSN),
    ("SELECT count(*) FROM (SELECT ssn AS k FROM staff) AS q GROUP BY k", SSN),
    ("SELECT DISTINCT ON (ssn) name FROM staff", SSN),
    ("SELECT name FROM staff GROUP BY name HAVING max(ssn) = 's1'", SSN),
    ("SELECT name FROM staff LIMIT (SELECT length(max(ssn)) FROM staff)", SSN),
    # compared other than as it is: an error may quote it, a count may spell it
    ("SELECT name FROM staff WHERE ssn::bigint = 1", SSN),
    ("SELECT name FROM staff WHERE upper(ssn) = 'S1'", SSN),
    ("SELECT name FROM staff WHERE ssn || '' = 's1'", SSN),
    ("SELECT person FROM staff, claims WHERE ssn_of(staff) = person", None),
    ("SELECT name, count(*) FROM staff s JOIN claims c ON c.person <= s.ssn GROUP BY name", SSN),
    ("SELECT name, amount FROM staff s JOIN claims c ON s.ssn = lower(c.person)", SSN),
    ("SELECT name FROM staff s, claims c WHERE (s.ssn = c.person) = (c.amount > 1)", SSN),
    # equal to it: keys echoed through a join
    ("SELECT person FROM staff JOIN claims ON person = staff.ssn", SSN),
    ("SELECT person FROM staff, claims WHERE staff.ssn = claims.person", SSN),
    ("SELECT claims.* FROM staff JOIN claims ON person = staff.ssn", SSN),
    ("SELECT ssn FROM staff JOIN claims USING (ssn)", SSN),
    ("SELECT c.ssn FROM staff JOIN claims c USING (ssn)", SSN),
    ("SELECT j.ssn FROM staff JOIN claims USING (ssn) AS j", SSN),
    ("SELECT claims.ssn FROM staff NATURAL JOIN claims", SSN),
    ("SELECT c.ssn FROM staff s NATURAL JOIN (SELECT ssn FROM claims) AS c", SSN),
    ("SELECT person FROM claims WHERE person IN (SELECT ssn FROM staff)", SSN),
    ("SELECT person FROM claims WHERE person = ANY (SELECT ssn FROM staff)", SSN),
    ("SELECT person FROM claims c WHERE EXISTS (SELECT FROM staff s WHERE s.ssn = c.person)", SSN),
    ("SELECT upper(person) FROM claims JOIN staff ON person = staff.ssn", SSN),
    ("SELECT v.k FROM staff JOIN (VALUES ('s1'), ('s2')) AS v(k) ON v.k = ssn", SSN),
    ("SELECT g FROM staff JOIN generate_series(1, 9) g ON g = length(ssn)", SSN),
    ("SELECT d.person FROM staff JOIN claims c ON c.person = staff.ssn JOIN claims d"
     " ON d.person = c.person", SSN),
    ("SELECT d.person FROM staff JOIN claims c ON c.person = staff.ssn JOIN claims d"
     " ON d.person = c.person || ''", SSN),
    ("SELECT q.k2 FROM (SELECT person AS k, person AS k2 FROM claims) q JOIN staff ON k = ssn", SSN),
    ("SELECT amount FROM staff JOIN claims ON person = staff.ssn ORDER BY person", SSN),
    # equal to it, in an expression that does not leave: errors, functions and counts tell it
    ("SELECT count(*) FROM staff s JOIN claims c ON c.person = s.ssn"
     " WHERE (c.person || s.name)::int = 1", SSN),
    ("SELECT count(*) FROM staff s JOIN claims c ON c.person = s.ssn AND length(c.person) = 2", SSN),
    ("SELECT count(*) FROM (SELECT DISTINCT (c.person || s.name)::int FROM staff s"
     " JOIN claims c ON c.person = s.ssn) AS q", SSN),
    ("SELECT count(*) FROM (SELECT max(person) FROM staff s JOIN claims c ON c.person = s.ssn) AS q", SSN),
    ("SELECT name, count(*) FROM staff s JOIN claims c ON c.person = s.ssn,"
     " generate_series(1, ascii(c.person)) GROUP BY name", SSN),
    ("SELECT name, x.id FROM staff s JOIN claims c ON c.person = s.ssn"
     " LEFT JOIN claims x ON c.person = 's1'", SSN),
    ("SELECT name FROM staff s JOIN claims c ON c.person = s.ssn"
     " WHERE c.id = (SELECT length(c.person))", SSN),
    ("SELECT n FROM (SELECT 1 AS k) o, LATERAL (SELECT ssn AS k, count(*) AS n FROM staff"
     " GROUP BY (k, id)) AS g", SSN),
    ("SELECT person FROM claims c WHERE c.person = (SELECT d.person FROM claims d, staff s"
     " WHERE d.person = s.ssn LIMIT 1)", SSN),
    ("WITH RECURSIVE r AS (SELECT person FROM claims UNION SELECT r.person FROM r JOIN staff"
     " ON r.person = staff.ssn) SELECT person FROM r", SSN),
    ("WITH RECURSIVE a AS (SELECT n FROM b), b AS (SELECT ssn AS n FROM staff) SELECT n FROM a", None),
    ("SELECT (SELECT name FROM (SELECT 1) AS ssn) FROM (SELECT ssn AS name FROM staff) AS q", SSN),
    ("SELECT (SELECT ssn FROM (SELECT 1) AS ssn) FROM staff", SSN),
    # aggregates
    ("SELECT salary FROM staff", SALARY),
    ("SELECT max(salary) FROM staff", SALARY),
    ("SELECT sum(DISTINCT salary) FROM staff", SALARY),
    ("SELECT sum(salary + 0) FROM staff", SALARY),
    ("SELECT sum(salary::numeric) FROM staff", SALARY),
    ("SELECT sum(CASE WHEN id = 1 THEN salary END) FROM staff", SALARY),
    ("SELECT sum(id) FILTER (WHERE salary > 55) FROM staff", SALARY),
    ("SELECT sum(salary) OVER (PARTITION BY id) FROM staff", SALARY),
    ("SELECT (SELECT sum(s.salary)) FROM staff s", SALARY),
    ("SELECT (SELECT sum(s.salary) FROM claims LIMIT 1) FROM staff s", SALARY),
    ("SELECT array_agg(salary) FROM staff", SALARY),
    ("SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY salary) FROM staff", SALARY),
    ("SELECT name FROM staff ORDER BY salary", SALARY),
    ("SELECT amount FROM claims JOIN staff ON amount = salary", SALARY),
    ("SELECT salary, sum(salary) FROM staff GROUP BY salary", SALARY),
    ("SELECT l.n FROM staff s, LATERAL (SELECT s.salary AS n) AS l", SALARY),
    ("SELECT public.sum(salary) FROM staff", None),
    # a column that may not filter
    ("SELECT name FROM staff WHERE grade = 1", GRADE),
    ("SELECT name FROM staff WHERE id = 1 OR grade + 1 > 2", GRADE),
    ("SELECT name FROM staff WHERE grade IS NULL", GRADE),
    ("SELECT name FROM staff JOIN claims ON amount = grade", GRADE),
    ("SELECT name FROM staff LEFT JOIN claims ON grade > 1", GRADE),
    ("SELECT count(*) FROM staff JOIN (SELECT 1::bigint AS grade) AS g USING (grade)", GRADE),
    ("SELECT count(*) FROM staff NATURAL JOIN (SELECT 1::bigint AS grade) AS g", GRADE),
    ("SELECT name FROM staff ORDER BY grade", GRADE),
    ("SELECT grade FROM staff ORDER BY 1", GRADE),
    ("SELECT grade AS g FROM staff ORDER BY g LIMIT 1", GRADE),
    ("SELECT DISTINCT ON (grade) name FROM staff", GRADE),
    ("SELECT count(*) FILTER (WHERE grade = 1) FROM staff", GRADE),
    ("SELECT max(grade) FROM staff HAVING max(grade) > 1", GRADE),
    ("SELECT grade FROM staff GROUP BY grade HAVING grade > 1", GRADE),
    ("SELECT name, rank() OVER (PARTITION BY grade) FROM staff", GRADE),
    ("SELECT JSON_ARRAYAGG(name) FILTER (WHERE grade = 1) FROM staff", GRADE),
    ("SELECT JSON_ARRAYAGG(name ORDER BY grade) FROM staff", GRADE),
    ("SELECT JSON_OBJECTAGG(id: name) OVER (ORDER BY grade) FROM staff", GRADE),
    ("SELECT JSON_ARRAYAGG(ssn) FROM staff", SSN),
    ("SELECT JSON_ARRAYAGG(name ORDER BY ssn) FROM staff", SSN),
    ("SELECT JSON_OBJECTAGG(id: salary) FROM staff", SALARY),
    ("SELECT q.hit FROM (SELECT grade = 1 AS hit FROM staff) AS q WHERE q.hit", GRADE),
    ("SELECT q.m FROM (SELECT name, max(grade) AS m FROM staff GROUP BY name) AS q WHERE m > 1", GRADE),
    ("WITH w AS (SELECT grade AS g, name FROM staff) SELECT name FROM w WHERE g = 1", GRADE),
    ("SELECT id FROM claims WHERE amount IN (SELECT grade FROM staff)", GRADE),
    ("SELECT id FROM claims WHERE amount > (SELECT max(grade) FROM staff)", GRADE),
    ("SELECT name FROM staff s WHERE EXISTS (SELECT 1 WHERE s.grade = 1)", GRADE),
    ("SELECT grade FROM staff INTERSECT SELECT 1", GRADE),
    ("SELECT 1 EXCEPT SELECT grade FROM staff", GRADE),
    ("SELECT name FROM staff LIMIT (SELECT max(grade) FROM staff)", GRADE),
    ("SELECT g FROM staff, generate_series(1, grade) AS g", GRADE),
    ("SELECT name FROM staff WHERE (staff).grade = 1", None),
    ("SELECT name FROM staff s WHERE row_to_json(s) ->> 'grade' = '1'", None),
]  # fmt: skip


@pytest.fixture(scope="module")
def opened(request, two_owners):
    tables = {"north": {"staff": STAFF, "files": FILES}, "south": {"claims": CLAIMS}}
    with two_owners(request, "sqlite", tables) as (client, merged):
        yield client(north=NORTH), merged


@pytest.fixture
def ruled(opened):
    return opened[0]


@pytest.mark.parametrize("statement", ALLOWED)
def test_what_is_allowed_is_answered(opened, statement):
    proxy, merged = opened
    rows = proxy.execute(statement).fetchall()
    assert sorted(map(repr, rows)) == sorted(map(repr, merged.execute(statement).fetchall()))


def asked(connection):
    return connection.execute("SELECT count(*) FROM oar.steps").fetchone()


@pytest.mark.parametrize(("statement", "rule"), REFUSED)
def test_what_is_not_clearly_allowed_is_refused_by_its_rule_before_an_owner_is_asked(
    ruled, statement, rule
):
    before = asked(ruled)
    if "ssn_of" in statement or "public.sum" in statement:
        with pytest.raises(psycopg.errors.UndefinedFunction):
            ruled.execute(statement)
        return
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
        ruled.execute(statement)
    said = refused.value.diag
    assert said.message_detail.startswith("rule north/tables.staff.columns.")
    if rule is not None:
        assert said.message_detail == f"rule {rule}"
    assert said.message_hint
    assert asked(ruled) == before


def test_an_answer_that_passes_in_chunks_is_checked_once(ruled):
    found = ruled.execute("SELECT id FROM files WHERE secret = 's'").fetchall()
    assert sorted(found) == [(number,) for number in range(30_000)]


CARRIERS = [
    "COPY (SELECT ssn FROM staff) TO STDOUT",
    "EXPLAIN SELECT ssn FROM staff",
    "EXPLAIN ANALYZE SELECT ssn FROM staff",
    "SELECT * FROM public.oar_explain('SELECT ssn FROM shop.staff')",
    "CREATE TEMPORARY TABLE kept AS SELECT ssn FROM staff",
    "SELECT ssn INTO TEMPORARY kept FROM staff",
    "DECLARE c CURSOR WITH HOLD FOR SELECT ssn FROM staff",
    "INSERT INTO mine SELECT ssn FROM staff",
    "INSERT INTO mine VALUES ((SELECT max(ssn) FROM staff))",
    "INSERT INTO mine VALUES ('a') RETURNING (SELECT max(ssn) FROM staff)",
    "UPDATE mine SET t = ssn FROM staff",
    "UPDATE mine SET t = 'x' FROM staff WHERE t = ssn RETURNING t",
    "DELETE FROM mine USING staff WHERE t = ssn RETURNING t",
    "WITH w AS (INSERT INTO mine SELECT ssn FROM staff RETURNING t) SELECT * FROM w",
    "SELECT * FROM viewed",
    "SELECT secret FROM viewed WHERE name = 'Ann'",
    "EXECUTE fixed",
    "EXECUTE fixed_star",
    "CREATE TEMPORARY TABLE kept AS EXECUTE fixed",
    "EXPLAIN EXECUTE fixed",
    "SELECT t FROM mine JOIN staff ON t = ssn",
]


@pytest.mark.parametrize("statement", CARRIERS)
def test_no_carrier_takes_a_column_along(ruled, statement):
    before = asked(ruled)
    with ruled.transaction(force_rollback=True):
        ruled.execute("CREATE TEMPORARY TABLE mine (t text)")
        ruled.execute("CREATE TEMPORARY VIEW viewed AS SELECT ssn AS secret, name FROM staff")
        ruled.execute("DEALLOCATE ALL")
        ruled.execute("PREPARE fixed AS SELECT ssn FROM staff")
        ruled.execute("PREPARE fixed_star AS SELECT * FROM staff")
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
            ruled.execute(statement)
    assert refused.value.diag.message_detail.startswith("rule north/tables.staff.columns.")
    assert asked(ruled) == before


PRINTING = [("log_parameter_max_length_on_error", "-1"), ("debug_print_plan", "on")]


@pytest.mark.parametrize(("setting", "value"), PRINTING)
def test_no_setting_makes_the_hub_print_the_rows_it_evaluates(ruled, setting, value):
    statement = "SELECT name, 1 / (s.id - s.id) FROM staff s JOIN claims c ON s.ssn = c.person"
    before = asked(ruled)
    with ruled.transaction(force_rollback=True):
        ruled.execute("SELECT set_config(%s, %s, true)", [setting, value])
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            ruled.execute(statement)
        assert setting in refused.value.diag.message_hint
    assert asked(ruled) == before


@pytest.mark.parametrize(("setting", "value"), PRINTING)
def test_what_the_hub_prints_while_it_plans_does_not_reach_the_client(ruled, setting, value):
    """A function that lies about itself runs behind the look at the settings."""
    told = []
    ruled.add_notice_handler(lambda said: told.append(f"{said.message_detail} {said.context}"))
    with ruled.transaction(force_rollback=True):
        ruled.execute(
            "CREATE FUNCTION pg_temp.turn() RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$BEGIN"
            f" PERFORM set_config('{setting}', '{value}', true);"
            " PERFORM set_config('client_min_messages', 'debug5', true); RETURN 0; END$$"
        )
        with pytest.raises(psycopg.errors.DivisionByZero) as failed:
            ruled.execute(
                "SELECT name, 1 / ((s.id - s.id) + pg_temp.turn())"
                " FROM staff s JOIN claims c ON s.ssn = c.person"
            )
    assert not any("s1,s2" in each or "CONST" in each for each in told)
    assert "s1,s2" not in (failed.value.diag.context or "")


def test_a_view_and_a_prepared_statement_that_keep_to_the_rules_are_answered(ruled):
    with ruled.transaction(force_rollback=True):
        ruled.execute("CREATE TEMPORARY VIEW viewed AS SELECT ssn AS secret, name FROM staff")
        found = ruled.execute("SELECT name FROM viewed WHERE secret = 's2'").fetchall()
        assert found == [("Bob",)]
        found = ruled.execute("SELECT name FROM staff WHERE ssn = %s", ["s3"]).fetchall()
        assert found == [("Cid",)]
        ruled.execute("CREATE TEMPORARY TABLE mine (t text)")
        ruled.execute("INSERT INTO mine SELECT name FROM staff WHERE ssn = 's1'")
        ruled.execute("PREPARE kept AS SELECT t FROM mine JOIN staff ON name = t WHERE ssn = 's1'")
        assert ruled.execute("EXECUTE kept").fetchall() == [("Ann",)]
        ruled.execute("DEALLOCATE kept")


def test_a_rule_that_is_put_in_force_later_holds_for_prepared_statements(
    owners, new_hub, running_proxy
):
    settings = owners.settings(new_hub(), {"north": "version: 1\n"})
    settings = settings.model_copy(update={"catalog_refresh": 0.2})
    with running_proxy(settings) as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        client.prepare_threshold = 0
        assert len(client.execute("SELECT v FROM shop.a").fetchall()) == 6
        settings.owners["north"].policy.write_text(
            "version: 1\ntables: {a: {columns: {v: {output: false}}}}\n"
        )
        deadline = time.monotonic() + 30
        refused = None
        while refused is None and time.monotonic() < deadline:
            try:
                client.execute("SELECT v FROM shop.a")
            except psycopg.errors.InsufficientPrivilege as error:
                refused = error
        assert refused.diag.message_detail == "rule north/tables.a.columns.v.output"


def test_the_rules_of_each_holder_hold_for_a_split_table(proxy):
    client = proxy(
        {
            "north": "version: 1\ntables: {split: {columns: {k: {output: aggregate_only,"
            " functions: [sum, max]}}}}\n",
            "south": "version: 1\ntables: {split: {columns: {k: {output: aggregate_only,"
            " functions: [sum, min], filter: false}}}}\n",
        }
    )
    assert client.execute("SELECT sum(k) FROM shop.split").fetchone() == (160,)
    for statement in (
        "SELECT count(k) FROM shop.split",
        "SELECT max(k) FROM shop.split",
        "SELECT min(k) FROM shop.split",
        "SELECT k FROM shop.split",
        "SELECT t FROM shop.split WHERE k = 10",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute(statement)


def test_nothing_is_clear_where_another_schema_comes_before_the_built_ins(proxy):
    client = proxy({"north": "version: 1\ntables: {a: {columns: {v: {output: false}}}}\n"})
    counted = "SELECT count(*) FROM shop.a WHERE v = 'x'"
    assert client.execute(counted).fetchone() == (2,)
    client.execute("SET search_path = public, pg_catalog, shop")
    for statement in (counted, "SELECT id FROM shop.a"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
            client.execute(statement)
        assert "before pg_catalog" in str(refused.value)
    assert client.execute("SELECT count(*) FROM shop.d").fetchone() == (4,)


def test_no_operator_or_aggregate_that_others_may_have_made_is_given_the_values(
    owners, new_hub, running_proxy
):
    hub = new_hub()
    policy = (
        "version: 1\ntables: {a: {columns: {v: {output: aggregate_only, functions: [sum]}}},"
        " d: {min_group: {entity: id, size: 2}}}\n"
    )
    asked = (
        "SELECT count(*) FROM shop.a WHERE v = 5::bigint",
        "SELECT count(*) FROM shop.a JOIN shop.b ON v = w",
        "SELECT count(*) FROM shop.a WHERE v IN (SELECT w FROM shop.b)",
        "SELECT sum(v) FROM shop.a",
        "SELECT count(*) FROM shop.d WHERE name = 5::bigint",
        "SELECT sum(name) FROM shop.d",
    )
    told = []
    with (
        running_proxy(owners.settings(hub, {"north": policy})) as (_, dsn),
        psycopg.connect(hub, autocommit=True) as administrator,
        psycopg.connect(dsn, autocommit=True) as client,
    ):
        client.add_notice_handler(lambda said: told.append(said.message_primary))
        user = client.execute("SELECT session_user").fetchone()[0]
        administrator.execute("CREATE SCHEMA drafts; CREATE SCHEMA kept")
        administrator.execute(f'GRANT USAGE ON SCHEMA kept TO "{user}"')
        administrator.execute(f'GRANT USAGE, CREATE ON SCHEMA drafts TO "{user}"')
        # Transactions of its own: nobody else sees what is made in them.
        with client.transaction(force_rollback=True):
            for statement in (
                "CREATE FUNCTION drafts.tell(v text, n bigint) RETURNS bool LANGUAGE plpgsql"
                " AS $$BEGIN RAISE NOTICE 'told %', v; RETURN true; END$$",
                "CREATE OPERATOR drafts.= (LEFTARG = text, RIGHTARG = bigint, FUNCTION = drafts.tell)",
                "CREATE AGGREGATE drafts.sum(text) (SFUNC = textcat, STYPE = text)",
                "SET LOCAL search_path = drafts, public",
            ):
                client.execute(statement)
            assert client.execute("SELECT sum(s) FROM shop.b").fetchone()[0]
            for statement in asked:
                client.execute("SAVEPOINT before")
                with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                    client.execute(statement)
                assert "schema drafts of the search path" in str(refused.value)
                client.execute("ROLLBACK TO before")
        assert not any("told" in each for each in told)
        counted = "SELECT count(*) FROM shop.a WHERE v = 'x'"
        client.execute("SET search_path = kept, public")
        assert client.execute(counted).fetchone() == (2,)
        # What was planned before does not hold for a schema that is opened.
        administrator.execute("GRANT CREATE ON SCHEMA kept TO PUBLIC")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema kept"):
            client.execute(counted)
        client.execute("SET search_path = public")
        assert client.execute(counted).fetchone() == (2,)


def test_no_type_of_the_session_s_own_is_given_the_values(ruled):
    told = []
    ruled.add_notice_handler(lambda said: told.append(said.message_primary))
    statement = "SELECT name, amount FROM staff s JOIN claims c ON c.person = s.ssn ORDER BY 2"
    right = ruled.execute(statement).fetchall()
    with ruled.transaction(force_rollback=True):
        ruled.execute(
            "CREATE FUNCTION pg_temp.tell(v pg_catalog.text) RETURNS bool LANGUAGE plpgsql"
            " AS $$BEGIN RAISE NOTICE 'told %', v; RETURN true; END$$"
        )
        ruled.execute("CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.tell(VALUE))")
        found = ruled.execute(statement).fetchall()
    assert not any("told" in each for each in told)
    assert found == right
