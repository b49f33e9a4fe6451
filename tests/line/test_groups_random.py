"""Random statements about one person behind groups: what is told has to be the same, whoever it is.

Each is about the rows of person 3 alone, so that no group of it has entities enough. Those rows are
replaced between runs by none, by many, by values at the ends of their types, and by texts that are
no numbers; rows, notices and errors may not differ.
"""

from __future__ import annotations

from random import Random

import psycopg
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

STATEMENTS = 200

VISITS = "id bigint PRIMARY KEY, person bigint, city text, illness text, at timestamp, cost bigint"
OTHERS = [(n, n % 12, "Oslo", "flu", "2026-01-01", n) for n in range(60) if n % 12 != 3]
PEOPLE = [(n, f"P{n}", 1950 + n) for n in range(12)]
TRIPS = [(n % 12, n % 5) for n in range(40)]
VARIANTS = {
    "none": [],
    "one": [(900, 3, "Bern", "12", "2026-03-03", 5)],
    "many": [(900 + n, 3, "Oslo", "flu", f"2026-02-0{1 + n % 9}", n) for n in range(50)],
    "ends": [
        (900, 3, "", "\\", "infinity", 2**63 - 1),
        (901, 3, None, "%", "9999-12-31", -(2**63)),
        (902, 3, "x" * 5000, "1e400", "0001-01-01", 0),
        (903, 3, "ß", "pox", None, None),
    ],
}
KINDS = ("number", "text", "time")
COLUMNS = {
    "number": ["v.id", "v.cost", "v.person"],
    "text": ["v.city", "v.illness"],
    "time": ["v.at"],
}
CONSTANTS = {
    "number": ["0", "5", "1.5", "NULL", "9223372036854775807", "1e3"],
    "text": ["'flu'", "'12'", "''", "NULL"],
    "time": ["'2026-02-03'", "now()", "CURRENT_DATE", "NULL", "now() - INTERVAL '1 year'"],
}
POLICY = """\
version: 1
tables: {visits: {min_group: {entity: person, size: 4}}}
key_disclosure: [{column: '*', to: ['*']}]
"""


class Statements:
    """Statements, right and wrong, of forms that a reader of the manual might try."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def one(self) -> str:
        pick = self.random.choice
        only = "v.person = 3"
        inside = self.random.random() < 0.4
        rows = f"(SELECT v.*, {self.value()} AS made FROM visits v{self.where(only, 0.7)}) AS v"
        source = rows if inside else "visits v"
        source += pick(["", "", self.joined()])
        keys = [pick(["made" if inside else "city", self.value()]) for _ in range(pick([0, 1, 2]))]
        values = [*keys, *(self.aggregate(inside=inside) for _ in range(pick([1, 1, 2, 3])))]
        named = ", ".join(f"{value} AS c{n}" for n, value in enumerate(values))
        statement = f"SELECT {named} FROM {source}{self.where(only, 0.5)}"
        if keys:
            statement += " GROUP BY " + ", ".join(str(n + 1) for n in range(len(keys)))
        if self.random.random() < 0.3:
            statement += f" HAVING {self.aggregate(inside=inside)} {pick(['>', '=', '<>'])} 1"
        if self.random.random() < 0.2:
            statement += f" ORDER BY {pick(['1', self.aggregate(inside=inside), self.value()])}"
        wrapped = pick([
            "{0}", "{0}", "{0}", "{0} LIMIT 5", "SELECT * FROM ({0}) AS q",
            "SELECT * FROM ({0}) AS q WHERE 1 / (length(c0::text) - 1) >= 0", "WITH q AS ({0}) SELECT c0 FROM q",
            "SELECT count(*) FROM ({0}) AS q", "SELECT DISTINCT * FROM ({0}) AS q",
        ])  # fmt: skip
        return wrapped.format(statement)

    def where(self, only: str, often: float) -> str:
        if self.random.random() > often:
            return f" WHERE {only}"
        parts = [only, f"({self.condition()})"]
        self.random.shuffle(parts)
        return f" WHERE {' AND '.join(parts)}"

    def joined(self) -> str:
        kind = self.random.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        table = self.random.choice(
            ["people p", "trips p", "(SELECT a.* FROM trips a CROSS JOIN trips b) AS p"]
        )
        more = self.random.choice(["", "", f" AND ({self.condition()})", " AND p.person = 3"])
        return f" {kind} {table} ON p.person = v.person{more}"

    def condition(self) -> str:
        pick = self.random.choice
        kind = pick(KINDS)
        value, constant = self.value(kind), self.constant(kind)
        made = [
            lambda: f"{value} {pick(['=', '<>', '<', '>='])} {constant}",
            lambda: f"{value} IS {pick(['', 'NOT '])}NULL",
            lambda: f"{value} IN ({constant}, {self.constant(kind)})",
            lambda: f"{pick(['v.illness', 'lower(v.city)'])} LIKE {pick(['1', '%', 'f%'])!r}",
            lambda: "v.illness LIKE 'x\\'",
            lambda: f"{value} = {self.value(kind)}",
            lambda: "v.person IN (SELECT t.person FROM trips t WHERE t.km < 3)",
            lambda: "EXISTS (SELECT FROM people w WHERE w.person = v.person AND w.born > 1)",
            lambda: f"NOT ({self.condition()})",
            lambda: f"{self.condition()} {pick(['AND', 'OR'])} {self.condition()}",
        ]  # fmt: skip
        return str(pick(made)())

    def constant(self, kind: str) -> str:
        return self.random.choice(CONSTANTS[kind])

    def value(self, kind: str | None = None) -> str:
        pick = self.random.choice
        kind = kind or pick(KINDS)
        column = pick(COLUMNS[kind])
        other = pick(["v.cost", "v.illness", "v.at"])
        unit = pick(["year", "month", "dow", "epoch", "week"])
        plain = [lambda: column] * 2
        of_any = [
            lambda: f"coalesce({column}, {self.constant(kind)})",
            lambda: f"CASE WHEN {self.condition()} THEN {column} ELSE {self.constant(kind)} END",
            lambda: f"nullif({column}, {self.constant(kind)})",
        ]
        made = {
            "number": [
                lambda: f"{column} {pick('/%')} {pick(['2', '0.5', '0', '-1'])}",
                lambda: f"{column} {pick('+-*')} {pick(['2', '3.5', '1e5', '99999999999'])}",
                lambda: f"floor(({column} - 0.5) / {pick(['12.5', '0.0', '7'])}) * 12.5",
                lambda: f"extract({unit} FROM v.at){pick(['', '::int'])}",
                lambda: f"{pick(['v.illness', 'v.cost', 'v.cost::text'])}::{pick(['int', 'numeric'])}",
                lambda: f"round({pick(['v.cost', 'v.cost::numeric'])}, {pick(['1', '-2'])})",
                lambda: f"{pick(['1', '100'])} / (v.cost - 5)",
                lambda: "length(v.illness)",
            ],
            "text": [
                lambda: f"{pick(['lower', 'upper', 'btrim', 'md5'])}({column})",
                lambda: f"{column} || {pick(['v.city', 'v.cost::text', repr('x')])}",
                lambda: f"{other}::text",
                lambda: f"{pick(['left', 'right', 'repeat'])}({column}, {pick(['2', '1', 'v.cost::int', '-1'])})",
                lambda: f"to_char(v.at, {pick(['YYYY-MM', 'TMMonth', 'Q'])!r})",
                lambda: f"substring({column}, 1, {pick(['1', '0', 'v.cost::int - 4'])})",
            ],
            "time": [
                lambda: f"date_trunc('{unit}', v.at)",
                lambda: f"v.at{pick(['::date', '::timestamptz', ' AT TIME ZONE ' + repr('UTC')])}",
                lambda: f"v.at {pick('+-')} INTERVAL '{pick(['1 day', '999 year', '9999 year'])}'",
                lambda: f"v.illness::{pick(['date', 'timestamp'])}",
            ],
        }  # fmt: skip
        return str(pick([*plain, *of_any, *made[kind]])())

    def aggregate(self, *, inside: bool) -> str:
        pick = self.random.choice
        column = pick(["v.cost", "v.id", "v.person", *(["made"] * inside)])
        made = [
            lambda: "count(*)",
            lambda: f"count({pick(['', 'DISTINCT '])}{pick([column, 'v.illness', 'v.at'])})",
            lambda: f"{pick(['sum', 'avg', 'stddev', 'sum', 'avg', 'max'])}({column})",
            lambda: f"sum({column}::{pick(['numeric', 'float8', 'int'])})",
            lambda: f"sum({self.value('number')})",
            lambda: f"count(*) FILTER (WHERE {self.condition()})",
        ]  # fmt: skip
        return str(self.random.choices(made, [4, 4, 4, 1, 1, 1])[0]())


@pytest.fixture(scope="module")
def told(new_database, running_proxy, tmp_path_factory):
    """Say what a session is told of statements, over each variant of one person's rows."""
    directory = tmp_path_factory.mktemp("random")
    databases = {"north": new_database("north"), "south": new_database("south")}
    with psycopg.connect(databases["south"], autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE people (person bigint PRIMARY KEY, name text, born bigint)"
        )
        connection.execute("CREATE TABLE trips (person bigint, km bigint)")
        connection.cursor().executemany("INSERT INTO people VALUES (%s, %s, %s)", PEOPLE)
        connection.cursor().executemany("INSERT INTO trips VALUES (%s, %s)", TRIPS)
    with psycopg.connect(databases["north"], autocommit=True) as owner:
        owner.execute(f"CREATE TABLE visits ({VISITS})")
        insert = "INSERT INTO visits VALUES (%s, %s, %s, %s, %s, %s)"
        owner.cursor().executemany(insert, OTHERS)
        owners = {}
        for name, dsn in databases.items():
            policy = directory / f"{name}.yaml"
            policy.write_text(POLICY if name == "north" else POLICY.replace("tables", "# tables"))
            owners[name] = OwnerSettings(url=owner_url(dsn), schema="shop", policy=policy)
        hub = HubSettings(dsn=new_database("hub"))
        settings = Settings(owners=owners, hub=hub, listen=Listen(port=0), log_level="warning")

        def over_all(statements):
            found = {}
            for variant, rows in VARIANTS.items():
                owner.execute("DELETE FROM visits WHERE person = 3")
                owner.cursor().executemany(insert, rows)
                with psycopg.connect(dsn, autocommit=True) as session:
                    session.execute("SET search_path = shop")
                    found[variant] = [_told(session, statement) for statement in statements]
            return found

        with running_proxy(settings) as (_, dsn):
            yield over_all


def _told(session, statement):
    said = []

    def hear(notice):
        said.append((notice.message_primary, notice.message_detail))

    session.add_notice_handler(hear)
    try:
        rows = sorted(map(repr, session.execute(statement.encode()).fetchall()))
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary, error.diag.message_detail, said
    finally:
        session.remove_notice_handler(hear)
    return "00000", rows, None, said


def test_nothing_tells_of_one_person(told):
    made = Statements(7)
    statements = [made.one() for _ in range(STATEMENTS)]
    found = told(statements)
    states = [state for state, *_ in found["none"]]
    assert STATEMENTS / 6 < states.count("00000") < STATEMENTS
    for each in zip(statements, *found.values(), strict=True):
        assert all(other == each[1] for other in each[2:]), each
