"""What everybody may do in the hub, all of it, and that none of it tells or moves anything."""

from __future__ import annotations

import secrets
import threading

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.hub import bootstrap
from waits import eventually

GRANTS = {
    ("schema", "oar"): {"oar_client": "USAGE", "oar_auditor": "USAGE"},
    ("schema", "oar_internal"): {"PUBLIC": "USAGE"},
    ("schema", "oar_plan"): {"oar_planner": "USAGE"},
    ("schema", "public"): {"PUBLIC": "USAGE", "oar_client": "USAGE", "oar_auditor": "USAGE"},
    ("schema", "shop"): {"oar_client": "USAGE"},
    ("schema", "pg_catalog"): {"PUBLIC": "USAGE"},
    ("schema", "information_schema"): {"PUBLIC": "USAGE"},
    **{
        ("relation", f"oar.{name}"): {"oar_client": "SELECT", "oar_auditor": "SELECT"}
        for name in (
            *("tables", "columns", "owners", "verified"),
            *("asks", "steps", "disclosures", "policies"),
        )
    },
    ("relation", "oar.applications"): {"oar_auditor": "SELECT"},
    ("relation", "shop.t"): {"oar_client": "SELECT"},
    **{
        ("function", f"oar_internal.{name}"): {"PUBLIC": "EXECUTE"}
        for name in (
            "given(text,anyelement)",
            "guard(text,text)",
            "withdrawn()",
            "named(text[],text[],text[])",
            "session_state(text[])",
            "view_definition(oid)",
            "wait_for_proxy(bigint)",
        )
    },
    ("function", "oar_internal.any_row()"): {"oar_planner": "EXECUTE"},
    ("function", "oar_internal.any_table()"): {"oar_planner": "EXECUTE"},
    ("function", "oar_ask(text)"): {"oar_client": "EXECUTE"},
    ("function", "oar_ask_json(text)"): {"oar_client": "EXECUTE"},
    ("function", "oar_explain(text)"): {"oar_client": "EXECUTE"},
    ("database", "this"): {
        "oar_client": "CONNECT, TEMPORARY",
        "oar_auditor": "CONNECT, TEMPORARY",
    },
    **{
        ("language", name): {"PUBLIC": "USAGE"}  # those of C and of the server are a superuser's
        for name in ("c", "internal", "plpgsql", "sql")
    },
}
"""Every right to what the hub holds that anybody has who does not own it."""

GRANTED = """
WITH object(kind, name, owner, acl, standard) AS (
  SELECT 'schema', nspname::text, nspowner, nspacl, acldefault('n', nspowner)
  FROM pg_namespace WHERE nspname !~ '^pg_(toast|temp)'
  UNION ALL
  SELECT 'relation', oid::regclass::text, relowner, relacl,
         acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner)
  FROM pg_class WHERE oid >= 16384 AND relkind NOT IN ('i', 't') AND relpersistence <> 't'
  UNION ALL
  SELECT 'column', format('%s.%I', attrelid::regclass, attname), 0, attacl, NULL
  FROM pg_attribute WHERE attacl IS NOT NULL AND attrelid >= 16384
  UNION ALL
  SELECT 'function', oid::regprocedure::text, proowner, proacl, acldefault('f', proowner)
  FROM pg_proc WHERE oid >= 16384 AND pronamespace::regnamespace::text !~ '^pg_temp'
  UNION ALL
  SELECT 'type', format_type(oid, NULL), typowner, typacl, NULL
  FROM pg_type WHERE oid >= 16384 AND typacl IS NOT NULL
  UNION ALL
  SELECT 'language', lanname, lanowner, lanacl, acldefault('l', lanowner) FROM pg_language
  UNION ALL
  SELECT 'database', 'this', datdba, datacl, acldefault('d', datdba)
  FROM pg_database WHERE datname = current_database()
  UNION ALL
  SELECT 'new ' || defaclobjtype::text, defaclrole::regrole::text, 0, defaclacl, NULL
  FROM pg_default_acl
  UNION ALL
  SELECT 'server', srvname, srvowner, srvacl, NULL FROM pg_foreign_server
)
SELECT kind, name, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
       string_agg(privilege_type, ', ' ORDER BY privilege_type)
FROM object, aclexplode(coalesce(acl, standard)) WHERE grantee <> owner
GROUP BY kind, name, grantee
"""

STATE = "oar_internal.session_state('{TimeZone,client_encoding,oar.purpose}')"
NAMED = "oar_internal.named('{shop.t,v,pg_class,oar.tables,nothing}', '{shop}', '{t}')"

CALLS = [
    "oar_internal.guard('shop', 't')",
    "oar_internal.guard(NULL, NULL)",
    "oar_internal.guard('oar_internal', 'ledger_key')",
    "oar_internal.guard('%s %I', E'%n$s\\n/* oar 1 */')",
    "oar_internal.withdrawn()",
    "oar_internal.given('nothing', 1)",
    "oar_internal.given(NULL, NULL::text)",
    "oar_internal.session_state(NULL)",
    "oar_internal.session_state('{}')",
    "oar_internal.session_state(ARRAY(SELECT name FROM pg_settings))",
    "oar_internal.session_state('{no.such,\"\",NULL}')",
    *(
        f"oar_internal.session_state('{{{name}}}')"
        for name in (
            "config_file",
            "hba_file",
            "data_directory",
            "primary_conninfo",
            "ssl_key_file",
        )
    ),
    "oar_internal.named(NULL, NULL, NULL)",
    "oar_internal.named('{}', '{}', '{}')",
    "oar_internal.named(ARRAY(SELECT oid::regclass::text FROM pg_class), NULL, '{a,b}')",
    "oar_internal.named(ARRAY(SELECT oid::regclass::text FROM pg_class), '{}', '{}')",
    "oar_internal.named('{oar_internal.ledger_key,pg_authid,oar_internal.entries}', '{}', '{}')",
    "oar_internal.named('{\"; SELECT key FROM oar_internal.ledger_key\"}', '{}', '{}')",
    "oar_internal.view_definition(NULL)",
    "oar_internal.view_definition(0)",
    "oar_internal.view_definition('oar.asks'::regclass)",
    "oar_internal.view_definition('oar_internal.ledger_key'::regclass)",
    "string_agg(oar_internal.view_definition(oid), ';') FROM pg_class",
    "oar_internal.wait_for_proxy(NULL)",
    "oar_internal.wait_for_proxy(0)",
    "oar_internal.wait_for_proxy(-9223372036854775808)",
    "oar_internal.any_row()",
    "oar_internal.any_table()",
    "oar_internal.refuse_change()",
    "oar_internal.refuse_loss()",
]

WAYS = [
    "SELECT {}",
    "SET ROLE oar_client; SELECT {}",
    "CREATE FUNCTION pg_temp.f() RETURNS SETOF text LANGUAGE plpgsql SECURITY DEFINER AS "
    "$$ BEGIN RETURN QUERY EXECUTE $q$ SELECT x::text FROM (SELECT {}) AS y(x) $q$; END $$; "
    "SELECT * FROM pg_temp.f()",
]

HOSTILE = """
CREATE TEMP TABLE pg_roles (oid oid, rolname text);
INSERT INTO pg_roles SELECT 16384, r FROM unnest('{oar_auditor,somebody}'::text[]) AS r;
CREATE TEMP TABLE pg_class AS SELECT oid, relname, relkind, relnamespace FROM pg_catalog.pg_class;
CREATE TEMP TABLE pg_namespace AS SELECT oid, 'oar'::name AS nspname FROM pg_catalog.pg_namespace;
CREATE TEMP TABLE pg_attribute (attrelid oid); CREATE TEMP TABLE pg_collation (oid oid);
CREATE TEMP TABLE pg_locks (pid int); CREATE TEMP TABLE pg_stat_activity (pid int);
CREATE TEMP TABLE entries (a int); CREATE TEMP TABLE t (id int, hidden text);
CREATE DOMAIN pg_temp.text AS int; CREATE DOMAIN pg_temp.oid AS bool; CREATE TYPE pg_temp.u AS ();
CREATE FUNCTION pg_temp.unnest(anyarray) RETURNS int LANGUAGE sql AS 'SELECT 1/0';
CREATE FUNCTION pg_temp.format(pg_catalog.text, pg_catalog.text, pg_catalog.text)
    RETURNS pg_catalog.text LANGUAGE sql AS 'SELECT (1/0)::pg_catalog.text';
CREATE FUNCTION pg_temp.pg_has_role(name, oid, pg_catalog.text) RETURNS bool
    LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION pg_temp.current_setting(pg_catalog.text) RETURNS pg_catalog.text
    LANGUAGE sql AS 'SELECT ''UTF8''::pg_catalog.text';
CREATE FUNCTION pg_temp.eq(name, pg_catalog.text) RETURNS bool LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR pg_temp.= (LEFTARG = name, RIGHTARG = pg_catalog.text, FUNCTION = pg_temp.eq);
SET search_path = pg_temp, oar, oar_internal, information_schema, pg_catalog;
SET quote_all_identifiers = on; SET transform_null_equals = on; SET row_security = off;
SET plpgsql.extra_errors = 'all'; SET standard_conforming_strings = off;
"""


@pytest.fixture(scope="module", autouse=True)
def published(hub, publish_now, catalog, table):
    columns = [("id", "integer", True), ("name", "text")]
    assert publish_now(catalog([(("owner", "shop"), [table("t", *columns)])]))


@pytest.fixture(scope="module")
def guarded(hub, client_conninfo):
    """What nobody but its owner is told: of the hub, and of somebody else's session."""
    other = f"boris_{secrets.token_hex(4)}"
    told = {name: secrets.token_hex(12) for name in ("entry", "key", "purpose", "row", "statement")}
    with psycopg.connect(hub.conninfo, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {other} LOGIN PASSWORD 'x' IN ROLE oar_client")
        admin.execute(
            "INSERT INTO oar_internal.entries (writer, number, at, kind, ask, principal, body, hash)"
            " VALUES (gen_random_uuid(), 1, now(), 'ask', gen_random_uuid(), %s, %s, sha256(''))",
            (other, f'{{"statement": "{told["entry"]}"}}'),
        )
        admin.execute(
            "INSERT INTO oar_internal.ledger_key (key) VALUES (decode(%s, 'hex'))"
            " ON CONFLICT (one) DO UPDATE SET key = excluded.key",
            (told["key"],),
        )
        ((verifier,),) = admin.execute(
            "SELECT rolpassword FROM pg_authid WHERE rolname = %s", (other,)
        ).fetchall()
        dsn = psycopg.conninfo.make_conninfo(hub.conninfo, user=other, password="x")
        with psycopg.connect(dsn) as session:
            session.execute(f"SET oar.purpose = '{told['purpose']}'")
            session.execute(f"CREATE TEMP TABLE mine AS SELECT '{told['row']}' AS a")
            session.execute(f"PREPARE mine AS SELECT '{told['statement']}'")
            yield {**told, "verifier": verifier.rpartition("$")[2]}
        gone = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
        eventually(lambda: admin.execute(gone, (other,)).fetchone() == (0,))
        admin.execute(
            f"ALTER TABLE oar_internal.entries DISABLE TRIGGER kept;"
            f"DELETE FROM oar_internal.entries WHERE principal = '{other}';"
            f"ALTER TABLE oar_internal.entries ENABLE ALWAYS TRIGGER kept;"
            f"DROP ROLE {other}"
        )


def test_nobody_has_another_right_than_these(admin):
    """A new one comes here, with a reason to be safe."""
    found = {}
    admin.execute("SET search_path = public")
    for kind, name, grantee, rights in admin.execute(GRANTED).fetchall():
        if not (name.startswith("oar_plan.") and (grantee, rights) == ("oar_planner", "SELECT")):
            found.setdefault((kind, name), {})[grantee] = rights
    assert found == GRANTS


def test_no_function_that_is_not_its_callers_own_runs_as_another_role(admin):
    """What clients may call has their rights; so have rules, and no trigger is theirs."""
    definers = "SELECT oid::regprocedure::text FROM pg_proc WHERE oid >= 16384 AND prosecdef"
    # These have fewer rights than whoever may call them: the proxy.
    assert {name for (name,) in admin.execute(definers)} == {
        "oar_internal.explained_as_oar_checker(text)",
        "oar_internal.explained_as_oar_planner(text)",
    }
    for role in ("oar_checker", "oar_planner"):
        callers = (
            "SELECT a.grantee::regrole::text, p.proowner::regrole::text FROM pg_proc p,"
            " aclexplode(p.proacl) AS a WHERE p.proname = %s"
        )
        found = admin.execute(callers, (f"explained_as_{role}",)).fetchall()
        assert found == [(role, role)]


def test_no_client_is_a_member_of_a_role_that_owns_something(client, admin):
    """Members of a role may alter, replace and drop what it owns."""
    owners = "SELECT DISTINCT refobjid::regrole::text FROM pg_shdepend WHERE deptype = 'o'"
    found = {
        name
        for (name,) in admin.execute(f"{owners} AND refobjid::regrole <> current_user::regrole")
    }
    assert {"oar_planner", "oar_checker"} <= found
    for name in found:
        asked = client.execute("SELECT pg_has_role(%s, 'MEMBER')", (name,))
        assert asked.fetchone() == (False,), name
    for altered in (
        "DROP FUNCTION {}",
        "ALTER FUNCTION {} SECURITY INVOKER",
        "ALTER FUNCTION {} COST 1",
    ):
        for role in ("oar_planner", "oar_checker"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
                client.execute(altered.format(f"oar_internal.explained_as_{role}(text)").encode())


@pytest.mark.parametrize("way", WAYS, ids=["directly", "role", "definer"])
@pytest.mark.parametrize("hostile", ["", HOSTILE], ids=["", "hostile"])
def test_no_call_tells_what_is_not_the_callers(client_conninfo, admin, guarded, way, hostile):
    before = admin.execute("SELECT count(*), max(entry) FROM oar_internal.entries").fetchone()
    heard = []

    def hear(diagnosis):
        heard.extend(
            str(getattr(diagnosis, part))
            for part in ("message_primary", "message_detail", "message_hint", "context")
        )

    for call in CALLS:
        with psycopg.connect(client_conninfo, autocommit=True) as client:
            client.add_notice_handler(hear)
            client.execute(hostile.encode() or b"SELECT")
            try:
                cursor = client.execute(way.format(call).encode())
                while cursor.nextset():
                    pass
                heard += [str(value) for row in cursor.fetchall() for value in row]
            except psycopg.Error as error:
                hear(error.diag)
    assert len(heard) > len(CALLS)
    for name, secret in guarded.items():
        assert not any(secret in text for text in heard), name
    after = admin.execute("SELECT count(*), max(entry) FROM oar_internal.entries").fetchone()
    assert after == before


def test_what_a_session_says_of_itself_cannot_be_made_up(client_conninfo, admin):
    """Its role, its memberships and what names mean: the proxy decides by them."""

    def asked(*statements):
        with psycopg.connect(client_conninfo, autocommit=True) as client:
            for statement in ("CREATE TEMP VIEW v AS SELECT id FROM shop.t", *statements):
                client.execute(statement.encode())
            query = f"SELECT {STATE}::pg_catalog.json, {NAMED}::pg_catalog.json"
            state, named = client.execute(query.encode()).fetchone()
        path = state.pop("search_path")
        state["roles"].sort()
        return (
            state,
            path,
            [(n["number"], n["schema"].rstrip("_0123456789"), n["name"]) for n in named],
        )

    state, path, named = asked()
    assert state["principal"].startswith("anna ")
    assert state["roles"] == sorted([state["principal"], "oar_client"])
    assert path == ["public", "shop"]
    assert named == [
        *((1, "shop", "t"), (2, "pg_temp", "v")),
        *((3, "pg_catalog", "pg_class"), (4, "oar", "tables")),
    ]
    assert asked("SET ROLE oar_client") == (state, path, named)
    named[2] = (3, "pg_temp", "pg_class")  # which is what that name means there
    for role in ("", "SET ROLE oar_client"):
        answer = asked(HOSTILE, role)
        assert (answer[0], answer[2]) == (state, named)
        assert answer[1][1:] == ['"oar"', '"oar_internal"', '"information_schema"', '"pg_catalog"']


# --- locks that every client may take -------------------------------------------------------------


@pytest.mark.parametrize("taken", ["pg_advisory_lock", "pg_advisory_lock_shared"])
def test_a_client_that_holds_a_lock_does_not_keep_proxies_from_the_hub(
    hub, client, admin, publish_now, catalog, table, taken
):
    client.execute(f"SELECT {taken}({bootstrap._FIRST_LOCK})")
    assert publish_now(catalog([(("owner", "shop"), [table("t", ("id", "bigint"))])]))
    columns = [("id", "integer", True), ("name", "text")]
    assert publish_now(catalog([(("owner", "shop"), [table("t", *columns)])]))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("BEGIN; LOCK TABLE oar_internal.version IN ACCESS SHARE MODE")


def test_one_who_queues_for_a_sessions_lock_does_not_keep_it_waiting(
    hub, client_conninfo, client, admin
):
    """Everybody sees in pg_locks which lock a session is about to wait for."""
    key = secrets.randbits(62)
    admin.execute("SELECT pg_advisory_lock(%s)", (key,))
    queue = threading.Thread(target=client.execute, args=(f"SELECT pg_advisory_lock({key})",))
    queue.start()
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    eventually(lambda: admin.execute(waits).fetchone() == (1,))
    with psycopg.connect(client_conninfo, autocommit=True) as session:
        waiting = threading.Thread(
            target=session.execute, args=(f"SELECT oar_internal.wait_for_proxy({key})",)
        )
        waiting.start()
        waiting.join(2.5)
        assert waiting.is_alive()  # as long as the proxy has it
        admin.execute("SELECT pg_advisory_unlock(%s)", (key,))
        waiting.join(10)
        assert not waiting.is_alive()
    queue.join()
    client.execute(f"SELECT pg_advisory_unlock({key})")
