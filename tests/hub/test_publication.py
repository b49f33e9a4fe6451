"""The catalog in the hub: what clients and the planner find, and how it changes under them."""

from __future__ import annotations

import dataclasses
import hashlib
import re

import psycopg
import pytest
from oar_adapters.interface import Column
from oar_proxy.hub import bootstrap, publication, tables
from oar_proxy.hub.publication import PublicationBlocked

ID = ("id", "integer", True)

TYPES = [
    "smallint", "integer", "bigint", "real", "double precision", "numeric", "numeric(10,2)",
    "numeric(3,-2)", "boolean", "text", "character varying", "character varying(20)",
    "character(3)", '"char"', "name", "uuid", "date", "time without time zone",
    "time(3) with time zone", "timestamp without time zone", "timestamp(0) without time zone",
    "timestamp(3) with time zone", "interval", "interval day to second", "interval(2)", "bytea",
    "json", "jsonb", "xml", "inet", "cidr", "macaddr", "money", "point", "bit(8)",
    "bit varying(4)", "tsvector", "int4range", "datemultirange", "integer[]", "text[]",
    "numeric(5,1)[]", "timestamp with time zone[]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_published(publish_now, catalog):
    publish_now(catalog([]))


def planning_columns(admin, published):
    return admin.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        (f"oar_plan.{published.planning_name}",),
    ).fetchall()


def keys(admin, published):
    rows = admin.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass"
        " AND contype IN ('p', 'u') ORDER BY 1",
        (f"oar_plan.{published.planning_name}",),
    )
    return [definition for (definition,) in rows]


def view_columns(connection, name):
    return connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        (name,),
    ).fetchall()


def test_every_type_a_hub_has_is_published_as_it_is(publish_now, catalog, table, admin):
    columns = [(f"c{number}", type_) for number, type_ in enumerate(TYPES)]
    wanted = catalog([(("owner", "shop"), [table("t", *columns)])])
    publish_now(wanted)
    assert view_columns(admin, "shop.t") == columns
    held = planning_columns(admin, wanted.tables["shop", "t"])
    assert [(name, type_) for name, type_, _ in held] == columns


@pytest.mark.parametrize(
    ("properties", "id_not_null", "declared"),
    [
        ({"primary_key": ("id",)}, True, ["PRIMARY KEY (id)"]),
        ({"primary_key": ("id",)}, False, ["UNIQUE (id)"]),
        ({"primary_key": ("id", "Name")}, True, ['UNIQUE (id, "Name")']),
        ({"unique_keys": (("id",), ("Name", "id"))}, True, ['UNIQUE ("Name", id)', "UNIQUE (id)"]),
        (
            {"primary_key": ("id",), "unique_keys": (("id",), ("document",))},
            True,
            ["PRIMARY KEY (id)"],
        ),
        ({"unique_keys": (("short",), ("moment", "day"))}, True,
         ["UNIQUE (moment, day)", "UNIQUE (short)"]),
        ({}, True, []),
    ],
)  # fmt: skip
def test_planning_tables_declare_what_is_enforced(
    publish_now, catalog, table, admin, properties, id_not_null, declared
):
    columns = [
        ("id", "integer", id_not_null),
        ("Name", "text"),
        ("document", "json"),  # no order, hence no key in PostgreSQL
        ("short", "character varying(5)"),
        ("moment", "timestamp(3) with time zone"),
        ("day", "date"),
    ]
    wanted = catalog([(("owner", "shop"), [table("t", *columns, **properties)])])
    publish_now(wanted)
    published = wanted.tables["shop", "t"]
    assert keys(admin, published) == declared
    assert [c[2] for c in planning_columns(admin, published)] == [id_not_null, *[False] * 5]


def test_names_are_taken_as_they_are(publish_now, catalog, table, client):
    odd = "таб\"ли'ца; --"
    wanted = catalog([(("owner", "Мой %s маркет"), [table(odd, ("a.b", "text"), ("%s", "text"))])])
    publish_now(wanted)
    rows = client.execute(
        "SELECT table_schema, table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'Мой %s маркет' ORDER BY ordinal_position"
    ).fetchall()
    assert rows == [("Мой %s маркет", odd, "a.b"), ("Мой %s маркет", odd, "%s")]
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        client.execute(
            psycopg.sql.SQL("SELECT * FROM {}").format(psycopg.sql.Identifier("Мой %s маркет", odd))
        )
    assert odd in str(caught.value)


def test_comments_and_the_oar_views_say_what_is_published(publish_now, catalog, client):
    from oar_adapters.interface import Table

    columns = (
        Column("id", "integer", "id", not_null=True, comment="the order's number"),
        Column("note", "text", "note"),
    )
    orders = Table("orders", columns, "orders", comment="it's \\ all")
    wanted = catalog([
        (("first", "shop"), [orders]),
        (("second", "shop"), [dataclasses.replace(orders, comment=None)]),
        (("third", "far"), [dataclasses.replace(orders, name="other", comment=None)]),
    ])  # fmt: skip
    publish_now(wanted)
    assert client.execute(
        "SELECT obj_description('shop.orders'::regclass),"
        " col_description('shop.orders'::regclass, 1), col_description('shop.orders'::regclass, 2)"
    ).fetchone() == ("it's \\ all", "the order's number", None)
    assert client.execute("TABLE oar.tables").fetchall() == [
        ("shop", "orders", ["first", "second"], True, "it's \\ all"),
        ("far", "other", ["third"], False, None),
    ]
    assert client.execute("SELECT * FROM oar.columns WHERE schema = 'shop'").fetchall() == [
        ("shop", "orders", "id", 1, "integer", True, "the order's number"),
        ("shop", "orders", "note", 2, "text", False, None),
    ]
    assert client.execute("TABLE oar.owners").fetchall() == [
        ("first", 1), ("second", 1), ("third", 1)
    ]  # fmt: skip


def test_new_sessions_find_tables_without_a_schema(publish_now, catalog, table, client_conninfo):
    publish_now(catalog([(("a", "Big"), [table("x", ID)]), (("b", "small"), [table("x", ID)])]))
    with psycopg.connect(client_conninfo) as connection:
        assert connection.execute("SHOW search_path").fetchone() == (
            '"$user", public, "Big", small',
        )
        assert connection.execute("SELECT 'x'::regclass::oid = '\"Big\".x'::regclass").fetchone()


def test_publishing_the_same_again_changes_nothing(publish_now, catalog, table, admin):
    wanted = catalog([(("owner", "shop"), [table("t", ID), table("u", ID)])])
    assert publish_now(wanted)
    before = admin.execute("SELECT xmin, oid, relname FROM pg_class ORDER BY oid").fetchall()
    assert not publish_now(wanted)
    estimated = catalog([(("owner", "shop"), [table("t", ID, row_estimate=7.0), table("u", ID)])])
    assert not publish_now(estimated)
    assert (
        admin.execute("SELECT xmin, oid, relname FROM pg_class ORDER BY oid").fetchall() == before
    )


def test_only_what_changed_is_replaced(publish_now, catalog, table, admin):
    def oids():
        rows = admin.execute(
            "SELECT relname, oid FROM pg_class WHERE relnamespace = 'shop'::regnamespace"
        )
        return dict(rows.fetchall())

    first = catalog([(("owner", "shop"), [table("t", ID), table("u", ID), table("gone", ID)])])
    publish_now(first)
    before = oids()
    second = catalog([
        (("new", "shop"), [table("added", ID)]),
        (("owner", "shop"), [table("t", ID, primary_key=("id",)), table("u", ("x", "text"), ID)]),
    ])  # fmt: skip
    assert publish_now(second)
    after = oids()
    assert after.keys() == {"added", "t", "u"}
    assert after["t"] == before["t"]  # a new key changes nothing a client sees
    assert after["u"] != before["u"]
    assert keys(admin, second.tables["shop", "t"]) == ["PRIMARY KEY (id)"]
    planning = admin.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = 'oar_plan'::regnamespace"
    ).fetchall()
    assert {name for (name,) in planning} == {
        published.planning_name for published in second.tables.values()
    }


@pytest.mark.parametrize(
    ("columns", "outcome"),
    [
        ([ID, ("name", "text"), ("added", "date")], "cached plan must not change result type"),
        ([ID, ("name", "character varying")], "cached plan must not change result type"),
        ([ID], 'column "name" does not exist'),
        ([ID, ("renamed", "text")], 'column "name" does not exist'),
        ([ID, ("name", "text", True)], "does not evaluate"),
    ],
)
def test_a_session_survives_a_change_of_its_table(
    publish_now, catalog, table, client_conninfo, columns, outcome
):
    publish_now(catalog([(("owner", "shop"), [table("t", ID, ("name", "text"))])]))
    statement = "SELECT name FROM shop.t" if "exist" in outcome else "SELECT * FROM shop.t"
    with psycopg.connect(client_conninfo, autocommit=True) as connection:
        connection.execute("SET application_name = 'kept'")
        connection.execute(f"PREPARE p AS {statement}")
        connection.execute("CREATE TEMP VIEW mine AS SELECT id FROM shop.t")
        assert publish_now(catalog([(("owner", "shop"), [table("t", *columns)])]))
        with pytest.raises(psycopg.Error, match=outcome):
            connection.execute("EXECUTE p")
        assert view_columns(connection, "shop.t") == [(c[0], c[1]) for c in columns]
        assert connection.execute("SHOW application_name").fetchone() == ("kept",)


def test_a_busy_client_delays_publication_of_its_table_only(
    publish_now, catalog, table, client_conninfo
):
    publish_now(catalog([(("owner", "shop"), [table("t", ID), table("u", ID)])]))
    grown = catalog([(("owner", "shop"), [table("t", ID, ("x", "text")), table("u", ID)])])
    beside = catalog([(("owner", "shop"), [table("t", ID), table("u", ID, ("x", "text"))])])
    with psycopg.connect(client_conninfo) as connection:
        connection.execute("SELECT * FROM shop.t LIMIT 0")
        with pytest.raises(PublicationBlocked, match="transaction"):
            publish_now(grown)
        assert view_columns(connection, "shop.t") == [("id", "integer")]
        assert publish_now(beside)
        connection.rollback()
        assert publish_now(grown)
        assert view_columns(connection, "shop.t") == [("id", "integer"), ("x", "text")]


def test_a_long_transaction_holds_no_other_table_up(
    publish_now, published_now, catalog, table, admin, client_conninfo
):
    def wanted(*columns):
        return catalog([(("owner", "shop"), [table("t", *columns), table("u", *columns)])])

    publish_now(wanted(ID))
    grown = wanted(ID, ("x", "text"))
    with psycopg.connect(client_conninfo) as connection:
        connection.execute("SELECT * FROM shop.t LIMIT 0")
        connection.execute("SELECT pg_sleep(1.1)")
        held = published_now(grown)
        assert [(it.key, it.stands) for it in held.refused] == [(("shop", "t"), True)]
        assert view_columns(admin, "shop.u") == [("id", "integer"), ("x", "text")]
        assert connection.execute("SELECT * FROM shop.t LIMIT 0").description[-1].name == "id"
    assert publish_now(grown)
    assert view_columns(admin, "shop.t") == [("id", "integer"), ("x", "text")]


def test_schemas_come_and_go(publish_now, published_now, catalog, table, admin):
    def schemas():
        rows = admin.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'org%'")
        return {name for (name,) in rows}

    publish_now(catalog([(("a", "org1"), [table("t", ID)]), (("b", "org2"), [table("t", ID)])]))
    assert schemas() == {"org1", "org2"}
    admin.execute("CREATE TABLE org2.kept (id int)")
    publish_now(catalog([]))
    assert schemas() == {"org2"}  # someone's own table is there
    both = catalog([(("a", "org1"), [table("t", ID)]), (("b", "org2"), [table("t", ID)])])
    held = published_now(both)
    ((key, reason),) = [(it.key, it.reason) for it in held.refused]
    assert key == ("org2", "t")
    assert 'schema "org2" is in the hub already' in reason
    assert view_columns(admin, "org1.t") == [("id", "integer")]
    admin.execute("DROP SCHEMA org2 CASCADE")
    assert publish_now(both)


def test_an_administrators_own_view_is_not_dropped(
    publish_now, published_now, catalog, table, admin
):
    def wanted(*columns):
        return catalog([(("owner", "shop"), [table("t", *columns), table("beside", *columns)])])

    before, after = wanted(ID), wanted(("x", "text"), ID)
    publish_now(before)
    admin.execute("CREATE VIEW public.kept AS SELECT id FROM shop.t")
    for changed in (True, False):
        held = published_now(after)
        assert held.changed == changed
        (refused,) = held.refused
        assert (refused.key, refused.owners, refused.stands) == (("shop", "t"), ("owner",), True)
        assert "kept stands on its old form" in refused.reason
        assert list(held.catalog.tables) == [("shop", "beside")]
        # What was published before still is, and can be planned over.
        assert view_columns(admin, "shop.t") == [("id", "integer")]
        assert planning_columns(admin, before.tables["shop", "t"]) == [("id", "integer", True)]
        assert view_columns(admin, "shop.beside") == [("x", "text"), ("id", "integer")]
    assert [it.key for it in published_now(catalog([])).refused] == [("shop", "t")]
    assert view_columns(admin, "shop.t") == [("id", "integer")]
    admin.execute("DROP VIEW public.kept")
    assert publish_now(after)
    assert view_columns(admin, "shop.t") == [("x", "text"), ("id", "integer")]
    assert admin.execute(
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'oar_plan'"
    ).fetchone() == (2,)


def test_what_stands_on_a_table_stays_when_the_table_has_more_columns(
    publish_now, catalog, table, admin, client
):
    def wanted(*columns):
        return catalog([(("owner", "shop"), [table("t", *columns)])])

    publish_now(wanted(ID))
    admin.execute("CREATE VIEW public.kept AS SELECT id FROM shop.t")
    admin.execute("CREATE FUNCTION public.id(t shop.t) RETURNS int LANGUAGE sql RETURN t.id")
    client.execute("CREATE TEMP VIEW mine AS SELECT id FROM shop.t")
    assert publish_now(wanted(ID, ("x", "text")))
    assert view_columns(admin, "shop.t") == [("id", "integer"), ("x", "text")]
    for name in ("shop.t", "public.kept", "mine"):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=r'table "shop.t"'):
            (client if name == "mine" else admin).execute(f"SELECT id FROM {name}")
    admin.execute("DROP VIEW public.kept; DROP FUNCTION public.id")


# --- what a policy hides by now ------------------------------------------------------------------

SECRET = ("secret", "text")


@pytest.fixture
def hidden():
    """Names of columns, and of tables, that are hidden from everybody."""
    return set()


@pytest.fixture
def published_without(published_now, hidden):
    """Publish a catalog where policies hide what is ``hidden``."""

    def hides(_owner, table, columns):
        return bool(hidden & {table, *columns})

    return lambda wanted: published_now(wanted, hides)


def names_to_see(client):
    """Return all names of relations, columns and types, and all comments, that clients can read."""
    return {
        name
        for (name,) in client.execute(
            "SELECT relname FROM pg_class UNION SELECT attname FROM pg_attribute"
            " UNION SELECT typname FROM pg_type UNION SELECT description FROM pg_description"
            " UNION SELECT name FROM oar.tables UNION SELECT name FROM oar.columns"
        )
    }


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW public.kept AS SELECT id FROM shop.t",
        "CREATE TABLE public.kept (t shop.t)",
        "CREATE TABLE public.kept (t shop.t[])",
        "CREATE FUNCTION public.kept(t shop.t) RETURNS int LANGUAGE sql RETURN 1",
    ],
)
def test_what_is_hidden_is_seen_nowhere_whatever_stands_on_it(
    publish_now, published_without, hidden, catalog, table, admin, client, statement
):
    def wanted(*columns):
        return catalog([(("owner", "shop"), [table("t", *columns, comment="of secrets")])])

    publish_now(wanted(ID, SECRET))
    admin.execute(statement)
    admin.execute("COMMENT ON COLUMN shop.t.secret IS 'of a secret'")
    hidden.add("secret")
    for changed in (True, False):
        held = published_without(wanted(ID))
        assert (held.changed, held.refused) == (changed, ())
        (dependent,) = held.outdated
        assert "kept" in dependent
        assert view_columns(admin, "shop.t") == [("id", "integer")]
        assert not {"secret", "of a secret"} & names_to_see(client)
    if "VIEW" in statement:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="not published any more"):
            admin.execute("SELECT * FROM public.kept")
    # It may be seen again: what stands on the old form is not brought back, and not forgotten.
    hidden.clear()
    assert published_without(wanted(ID, SECRET)).outdated == held.outdated
    hidden.add("t")
    assert published_without(catalog([])).outdated == held.outdated
    assert "t" not in {name for (name,) in client.execute("SELECT relname FROM pg_class")}
    admin.execute(f"DROP {statement.split()[1]} public.kept")
    assert published_without(catalog([])).outdated == ()
    assert not {name for name in names_to_see(client) if "withdrawn_" in name}


def test_a_table_that_a_transaction_uses_is_listed_no_more_when_it_is_hidden(
    publish_now, published_without, hidden, catalog, table, client, client_conninfo
):
    whole = catalog([(("owner", "shop"), [table("t", ID, SECRET), table("u", ID)])])
    left = catalog([(("owner", "shop"), [table("t", ID), table("u", ID)])])
    listed = "SELECT table_name, name FROM oar.columns"
    publish_now(whole)
    hidden.add("secret")
    with psycopg.connect(client_conninfo) as connection:
        connection.execute("SELECT * FROM shop.t LIMIT 0")
        connection.execute("SELECT pg_sleep(1.1)")
        for changed in (False, False):
            held = published_without(left)
            assert held.changed == changed
            assert [(it.key, it.stands) for it in held.refused] == [(("shop", "t"), False)]
            assert client.execute(listed).fetchall() == [("u", "id")]
    assert published_without(left).changed
    assert client.execute(listed).fetchall() == [("t", "id"), ("u", "id")]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE public.kept (t shop.t)",
        "CREATE TABLE public.kept (t shop.t[])",
    ],
)
def test_nor_does_anything_lose_a_column_of_rows_of_a_table(
    publish_now, published_now, catalog, table, admin, client, statement
):
    publish_now(catalog([(("owner", "shop"), [table("t", ID)])]))
    admin.execute(statement)
    # A temporary table of a client's holds nothing up.
    client.execute("CREATE TEMP TABLE rows_of_t (t shop.t)")
    grown = catalog([(("owner", "shop"), [table("t", ID, ("x", "text"))])])
    (refused,) = published_now(grown).refused
    assert re.search(r"kept.* stands on its old form", refused.reason)
    admin.execute(f"DROP {statement.split()[1]} public.kept")
    assert publish_now(grown)


@pytest.mark.parametrize(
    ("schema", "name", "column", "type_", "message"),
    [
        ("public", "t", "a", "text", 'schema "public" is the hub\'s own'),
        ("pg_shop", "t", "a", "text", "hub's own"),
        ("oar_plan", "t", "a", "text", "hub's own"),
        ("information_schema", "t", "a", "text", "hub's own"),
        ("я" * 32, "t", "a", "text", "longer than 63 bytes"),
        ("shop", "x" * 64, "a", "text", "longer than 63 bytes"),
        ("shop", "t", "", "text", "is empty or longer"),
        ("shop", "t", "ctid", "text", "PostgreSQL's own or used twice"),
        ("shop", "t", "a", "varbit2", 'column "a" has type "varbit2", which the hub does not know'),
        ("shop", "t", "a", "integer) AS x(y integer", "which the hub does not know"),
        ("shop", "t", "a", "text; DROP SCHEMA oar CASCADE", "which the hub does not know"),
        ("shop", "t", "a", "integer -- ", "which the hub does not know"),
        ("shop", "t", "a", "record", "which the hub does not know"),
        ("shop", "t", "a", "serial", "which the hub does not know"),
        ("shop", "t", "a", "integer(5)", "the hub has no table like it: "),
        ("shop", "t", "a", "numeric(2000,1)", "NUMERIC precision 2000 must be between 1 and 1000"),
    ],
)
def test_what_cannot_be_published_keeps_nothing_else_from_it(
    publish_now, published_now, catalog, table, admin, schema, name, column, type_, message
):
    good = (("good", "shop"), [table("kept", ID)])
    publish_now(catalog([good]))
    better = (("good", "shop"), [table("kept", ID, ("x", "text"))])
    bad = (("mine", schema), [table(name, (column, type_)), table("beside", ID)])
    held = published_now(catalog([better, bad]))
    assert message in held.refused[0].reason
    assert {it.owners for it in held.refused} == {("mine",)}
    others = [("shop", "kept"), *([("shop", "beside")] if schema == "shop" else [])]
    assert list(held.catalog.tables) == others
    assert view_columns(admin, "shop.kept") == [("id", "integer"), ("x", "text")]
    assert not published_now(catalog([better, bad])).changed
    assert admin.execute("SELECT schema, name FROM oar.tables").fetchall() == others


def test_a_table_that_cannot_be_published_any_more_is_gone(
    publish_now, published_now, catalog, table, admin
):
    beside = table("beside", ID)
    publish_now(catalog([(("owner", "shop"), [table("t", ID), beside])]))
    for type_ in ("unheard_of", "numeric(2000)"):
        published_now(catalog([(("owner", "shop"), [table("t", ("id", type_)), beside])]))
        assert admin.execute("SELECT to_regclass('shop.t')").fetchone() == (None,)
        assert view_columns(admin, "shop.beside") == [("id", "integer")]
        assert publish_now(catalog([(("owner", "shop"), [table("t", ID), beside])]))


def test_a_column_named_twice_is_refused(published_now, catalog, table):
    twice = catalog([(("owner", "shop"), [table("t", ("a", "text"), ("a", "text"))])])
    assert "used twice" in published_now(twice).refused[0].reason


def test_a_planning_name_stands_for_what_it_declares(catalog, table):
    def name(*tables):
        return catalog([(("owner", "shop"), tables)]).tables["shop", "t"].planning_name

    base = name(table("t", ID))
    assert name(table("before", ID), table("t", ID)) == base
    assert name(table("t", ID, primary_key=("id",))) != base
    assert name(table("t", ("id", "bigint", True))) != base


def test_tables_of_some_owners_can_be_left_out_with_those_they_share(catalog, table):
    shared = table("split", ID)
    published = catalog(
        [
            (("north", "shop"), [table("a", ID), shared]),
            (("south", "shop"), [table("b", ID), shared]),
        ]
    )
    assert published.without([]) is published
    assert set(published.without(["south"]).tables) == {("shop", "a")}


def test_tables_are_made_anew_where_their_statements_have_changed(
    publish_now, catalog, table, admin, monkeypatch
):
    wanted = catalog([(("owner", "shop"), [table("t", ID), table("u", ID)])])
    planning = [f"oar_plan.{published.planning_name}" for published in wanted.tables.values()]

    def made():
        names = ["shop.t", "shop.u", *planning]
        rows = admin.execute("SELECT n::regclass::oid FROM unnest(%s::text[]) AS n", (names,))
        return {oid for (oid,) in rows}

    publish_now(wanted)
    first = made()
    # As before there was anything to tell of the statements, which had not changed yet.
    admin.execute("UPDATE oar_internal.published SET content = content - 'form'")
    monkeypatch.setattr(publication, "FORM", tables.FIRST_FORM)
    assert not publish_now(wanted)
    monkeypatch.setattr(publication, "FORM", "another")
    assert publish_now(wanted)
    assert not publish_now(wanted)
    second = made()
    # Views are made anew as what they are, for what stands on them.
    assert len(first & second) == 2
    assert len(first | second) == 6
    monkeypatch.setattr(publication, "FORM", tables.FIRST_FORM)
    assert publish_now(wanted)


def test_the_form_of_tables_is_that_of_all_their_statements(monkeypatch):
    """Whichever of them changes, and a hub that was published to by other ones is set up anew."""
    assert tables._form() == tables.FORM
    for name in ("planning_table", "guard_view", "comments"):
        with monkeypatch.context() as patch:
            made = getattr(tables, name)
            patch.setattr(
                tables, name, lambda *given, made=made: [*made(*given), psycopg.sql.SQL("x")]
            )
            assert tables._form() != tables.FORM
    scripts = b"".join(bootstrap.SCRIPTS)
    assert hashlib.sha256(scripts + tables.FORM.encode()).hexdigest() == bootstrap.DIGEST
