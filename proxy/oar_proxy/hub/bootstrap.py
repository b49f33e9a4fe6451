"""What every hub holds before anything is published: roles, schemas, functions, revocations.

Client roles own nothing and may create nothing but temporary objects: they can leave nothing
behind. Schema ``oar`` is what they may read about the proxy, ``oar_internal`` is the proxy's own,
``oar_plan`` holds the planning tables.
"""

from __future__ import annotations

from typing import Final

import psycopg
import structlog
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from oar_proxy.hub.address import HubError
from oar_proxy.hub.binaries import OLDEST_MAJOR

VERSION: Final = 4
"""Grows with every change below; a hub of a lower version is brought up to it at start."""

CLIENT_ROLE: Final = "oar_client"
AUDITOR_ROLE: Final = "oar_auditor"
PLANNER_ROLE: Final = "oar_planner"

HUB_LOCK: Final = 0x6F617200
"""Advisory lock key: one proxy at a time changes what a hub holds."""

_CODE_POINT_COLLATIONS: Final = ("C", "POSIX", "C.UTF-8", "C.utf8", "PG_C_UTF8")

_ROLES: Final = (CLIENT_ROLE, AUDITOR_ROLE, PLANNER_ROLE)

# Each of these writes a large object, which would outlive the session that wrote it.
_LARGE_OBJECT_WRITERS: Final = (
    "lo_create(oid)",
    "lo_creat(integer)",
    "lo_from_bytea(oid, bytea)",
    "lo_import(text)",
    "lo_import(text, oid)",
    "lo_put(oid, bigint, bytea)",
    "lo_truncate(integer, integer)",
    "lo_truncate64(integer, bigint)",
    "lo_unlink(oid)",
    "lowrite(integer, bytea)",
)

_SCHEMAS: Final = """
CREATE SCHEMA IF NOT EXISTS oar;
CREATE SCHEMA IF NOT EXISTS oar_internal;
CREATE SCHEMA IF NOT EXISTS oar_plan;
REVOKE ALL ON SCHEMA oar, oar_internal, oar_plan FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public, oar TO oar_client, oar_auditor;
GRANT USAGE ON SCHEMA oar_plan TO oar_planner;
-- What the proxy asks a session, and what a guard is made of, are there for whatever role is set.
GRANT USAGE ON SCHEMA oar_internal TO PUBLIC;
COMMENT ON SCHEMA oar IS 'what is published, and the ledger';
COMMENT ON SCHEMA oar_internal IS 'the proxy''s own: nothing to read here';
COMMENT ON SCHEMA oar_plan IS 'empty tables to plan statements over: nothing to read here';
"""

_FUNCTIONS: Final = """
CREATE OR REPLACE FUNCTION oar_internal.guard(schema_name text, table_name text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $body$
BEGIN
    -- Text that the proxy cannot read comes here. Not every encoding has more than ASCII.
    IF pg_catalog.current_setting('client_encoding') NOT IN ('UTF8', 'SQL_ASCII') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'statement over owners'' tables not run: client_encoding is not UTF8',
            HINT = 'SET client_encoding TO ''UTF8''';
    END IF;
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = format('table "%s.%s" was reached by a statement form that the proxy does not '
                         'evaluate', schema_name, table_name),
        HINT = 'use it in a SELECT, a WITH, a COPY (SELECT ...) TO STDOUT, a cursor or a CREATE '
               'TEMP TABLE AS, not inside a function or a DO block'
               || CASE pg_catalog.current_setting('standard_conforming_strings') WHEN 'off'
                  THEN '; backslashes in it need standard_conforming_strings' ELSE '' END;
END $body$;

CREATE OR REPLACE FUNCTION oar_internal.any_row()
RETURNS SETOF record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'XX000', MESSAGE = 'a planning row source was executed';
END $body$;

-- Stable, so that a CTE that reads it is planned as one that reads a table.
CREATE OR REPLACE FUNCTION oar_internal.any_table()
RETURNS SETOF record LANGUAGE plpgsql STABLE PARALLEL UNSAFE AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'XX000', MESSAGE = 'a planning table was executed';
END $body$;

CREATE OR REPLACE FUNCTION oar_internal.view_definition(view oid)
RETURNS text LANGUAGE sql STABLE SECURITY INVOKER SET search_path = '' AS $body$
    SELECT pg_catalog.pg_get_viewdef(view, false)
$body$;

-- What the proxy asks a session about itself: a plan of its own each session, made once.
CREATE OR REPLACE FUNCTION oar_internal.session_state(settings text[])
RETURNS text LANGUAGE plpgsql STABLE SECURITY INVOKER
SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
    RETURN pg_catalog.json_build_object(
        'principal', session_user,
        'roles', ARRAY(SELECT r.rolname FROM pg_catalog.pg_roles r
            WHERE r.oid >= 16384 AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')),
        'search_path', ARRAY(SELECT pg_catalog.quote_ident(s)
            FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS s),
        'settings', (SELECT pg_catalog.json_object_agg(s, pg_catalog.current_setting(s, true))
            FROM pg_catalog.unnest(settings) AS s),
        'transaction', CASE WHEN pg_catalog.current_setting('transaction_isolation')
            IN ('repeatable read', 'serializable') THEN pg_catalog.now()::pg_catalog.text END
    )::pg_catalog.text;
END $body$;

-- What names mean in the session; of published tables, whose schemas and names are given, no more
-- than that. Without a search path of its own, since the session's is asked about.
DROP FUNCTION IF EXISTS oar_internal.named(text[]);
CREATE OR REPLACE FUNCTION oar_internal.named(names text[], schemas text[], tables text[])
RETURNS text LANGUAGE plpgsql STABLE SECURITY INVOKER
SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
    RETURN (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
        'number', u.number, 'schema', c.nspname, 'name', c.relname,
        'described', CASE WHEN NOT EXISTS (
            SELECT FROM ROWS FROM (pg_catalog.unnest(schemas), pg_catalog.unnest(tables))
                AS p(schema, name) WHERE p.schema = c.nspname AND p.name = c.relname)
        THEN pg_catalog.json_build_object(
            'definition', CASE WHEN c.relkind = 'v' AND c.nspname NOT IN
                ('pg_catalog', 'information_schema', 'oar')
                THEN oar_internal.view_definition(c.oid) END,
            'columns', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(a.attname,
                pg_catalog.format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
            'collates', EXISTS (SELECT FROM pg_catalog.pg_attribute a
                JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT (l.collnamespace
                    = 'pg_catalog'::pg_catalog.regnamespace AND l.collname IN
                    ('default', 'C', 'POSIX', 'ucs_basic', 'pg_c_utf8'))))
        END))
        FROM ROWS FROM (pg_catalog.unnest(names)) WITH ORDINALITY AS u(name, number)
        CROSS JOIN LATERAL (
            -- By itself, so that it is found by its index and not by reading all there are.
            SELECT c.oid, c.relname, c.relkind, n.nspname FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid = pg_catalog.to_regclass(u.name) OFFSET 0) AS c)::pg_catalog.text;
END $body$;

-- Waits until the proxy has what it asks elsewhere for the session; see hub/sentinel.py. How long
-- that may take is the proxy's business, and the session's statement_timeout.
CREATE OR REPLACE FUNCTION oar_internal.wait_for_proxy(key bigint)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET lock_timeout = 0 SET client_min_messages = notice AS $body$
BEGIN
    RAISE NOTICE 'waiting';  -- to the proxy, which it leaves at once
    PERFORM pg_catalog.pg_advisory_lock_shared(key);
    PERFORM pg_catalog.pg_advisory_unlock_shared(key);
END $body$;

CREATE OR REPLACE FUNCTION public.oar_ask(question text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'the statement form was not recognised by the proxy',
        HINT = 'write SELECT … FROM oar_ask(''the question''), with the question as a literal';
END $body$;

CREATE OR REPLACE FUNCTION public.oar_ask_json(question text)
RETURNS SETOF jsonb LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'the statement form was not recognised by the proxy',
        HINT = 'write SELECT * FROM oar_ask_json(''the question'')';
END $body$;

CREATE OR REPLACE FUNCTION public.oar_explain(statement text)
RETURNS TABLE ("QUERY PLAN" text) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'the statement form was not recognised by the proxy',
        HINT = 'write SELECT * FROM oar_explain(''a question or a statement'')';
END $body$;

COMMENT ON FUNCTION public.oar_ask(text) IS 'the answer to a question in plain language';
COMMENT ON FUNCTION public.oar_ask_json(text) IS
    'the answer to a question in plain language, each row as JSON';
COMMENT ON FUNCTION public.oar_explain(text) IS
    'which owners a question or statement would ask, for what, and why';

REVOKE ALL ON FUNCTION oar_internal.any_row(), oar_internal.any_table(),
    public.oar_ask(text), public.oar_ask_json(text), public.oar_explain(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION public.oar_ask(text), public.oar_ask_json(text),
    public.oar_explain(text) TO oar_client;
GRANT EXECUTE ON FUNCTION oar_internal.guard(text, text), oar_internal.view_definition(oid),
    oar_internal.session_state(text[]), oar_internal.named(text[], text[], text[]),
    oar_internal.wait_for_proxy(bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION oar_internal.any_row(), oar_internal.any_table() TO oar_planner;
"""

_PUBLISHED: Final = """
CREATE TABLE IF NOT EXISTS oar_internal.published_schema (
    name text PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS oar_internal.published (
    schema text NOT NULL,
    name text NOT NULL,
    position integer NOT NULL,
    content jsonb NOT NULL,
    PRIMARY KEY (schema, name)
);

CREATE OR REPLACE VIEW oar.tables AS
    SELECT p.schema,
           p.name,
           ARRAY(SELECT o.owner
                 FROM jsonb_array_elements_text(p.content->'owners')
                      WITH ORDINALITY AS o(owner, place)
                 ORDER BY o.place) AS owners,
           jsonb_array_length(p.content->'owners') > 1 AS row_split,
           p.content->>'comment' AS comment
    FROM oar_internal.published AS p
    ORDER BY p.position;

CREATE OR REPLACE VIEW oar.columns AS
    SELECT p.schema,
           p.name AS table_name,
           c.content->>'name' AS name,
           c.place::integer AS position,
           c.content->>'type' AS type,
           (c.content->>'not_null')::boolean AS not_null,
           c.content->>'comment' AS comment
    FROM oar_internal.published AS p,
         jsonb_array_elements(p.content->'columns') WITH ORDINALITY AS c(content, place)
    ORDER BY p.position, c.place;

CREATE OR REPLACE VIEW oar.owners AS
    SELECT o.owner, count(*)::integer AS tables
    FROM oar_internal.published AS p,
         jsonb_array_elements_text(p.content->'owners') AS o(owner)
    GROUP BY o.owner
    ORDER BY o.owner;

CREATE TABLE IF NOT EXISTS oar_internal.verified (
    name text PRIMARY KEY,
    content jsonb NOT NULL,
    fault text
);

CREATE OR REPLACE VIEW oar.verified AS
    SELECT v.name,
           v.content->>'question' AS question,
           ARRAY(SELECT pg_catalog.jsonb_array_elements_text(v.content->'phrasings'))
               AS phrasings,
           ARRAY(SELECT pg_catalog.jsonb_array_elements_text(v.content->'parameters'))
               AS parameters,
           'verified.' || pg_catalog.quote_ident(v.content->>'view') AS view,
           v.content->>'reviewer' AS reviewer,
           (v.content->>'reviewed')::date AS reviewed,
           v.content->>'catalog_version' AS catalog_version,
           v.fault IS NULL AS fits
    FROM oar_internal.verified AS v
    ORDER BY v.name;

COMMENT ON VIEW oar.verified IS 'questions whose answers people have reviewed';
COMMENT ON VIEW oar.tables IS 'published tables and the owners that hold their rows';
COMMENT ON VIEW oar.columns IS 'columns of the published tables';
COMMENT ON VIEW oar.owners IS 'owners and the number of tables each takes part in';
GRANT SELECT ON oar.tables, oar.columns, oar.owners, oar.verified TO oar_client, oar_auditor;
"""

_log = structlog.get_logger(__name__)


async def create_database(
    connection: AsyncConnection[TupleRow], name: str, *, embedded: bool
) -> None:
    """Create the hub's database, ordering text by code point. ``connection``: any other database.

    Raises :class:`HubError` when the role may not.
    """
    if connection.info.server_version >= 170000:
        locale = sql.SQL("LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'")
    else:
        locale = sql.SQL("LOCALE 'C.UTF-8'")
    template = sql.SQL("TEMPLATE template0 ENCODING 'UTF8'")
    statement = sql.SQL("CREATE DATABASE {} {} {}").format(sql.Identifier(name), template, locale)
    try:
        # Without a template the embedded hub's own locale is kept, and the copy is quicker.
        await connection.execute(
            sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) if embedded else statement
        )
    except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        return  # another proxy was quicker
    except psycopg.Error as error:
        raise HubError(
            f'database "{name}" is not there and could not be created: '
            f"{error.diag.message_primary}",
            hint=statement.as_string(connection),
        ) from error
    if embedded:
        await connection.execute("REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC")


async def bootstrap(connection: AsyncConnection[TupleRow], *, embedded: bool) -> None:
    """Bring the hub to :data:`VERSION`. Does nothing when it is there already.

    Raises :class:`HubError` when this server, database or role cannot be a hub.
    """
    if not embedded:
        await _check(connection)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (HUB_LOCK,))
        if await _up_to_date(connection):
            return
        await _create_roles(connection)
        await connection.execute(_SCHEMAS)
        await connection.execute(_FUNCTIONS)
        await connection.execute(_PUBLISHED)
        await _restrict_database(connection)
        await _revoke_large_objects(connection)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS oar_internal.version (version integer NOT NULL);"
            "DELETE FROM oar_internal.version"
        )
        await connection.execute("INSERT INTO oar_internal.version VALUES (%s)", (VERSION,))


async def _check(connection: AsyncConnection[TupleRow]) -> None:
    if connection.info.server_version < OLDEST_MAJOR * 10000:
        raise HubError(
            f"the hub is PostgreSQL {connection.info.server_version // 10000}, "
            f"which is older than {OLDEST_MAJOR}"
        )
    cursor = await connection.execute(
        "SELECT datcollate, pg_encoding_to_char(encoding),"
        " pg_has_role(datdba, 'MEMBER'), (SELECT rolsuper OR rolcreaterole FROM pg_roles"
        " WHERE rolname = current_user), current_user, datname, to_jsonb(d) AS whole"
        " FROM pg_database AS d WHERE datname = current_database()"
    )
    row = await cursor.fetchone()
    assert row is not None
    collation, encoding, owner, may_create_roles, role, name, whole = row
    # PostgreSQL 17 and 18 call a builtin or ICU locale datlocale; 15 and 16 daticulocale.
    provider = whole["datlocprovider"]
    locale = whole.get("datlocale") or whole.get("daticulocale") if provider != "c" else collation
    if provider == "i" or locale not in _CODE_POINT_COLLATIONS or encoding != "UTF8":
        raise HubError(
            f'database "{name}" of the hub orders text by {locale}, encoding {encoding}',
            hint="a hub orders text by code point: CREATE DATABASE … TEMPLATE template0 "
            "ENCODING 'UTF8' LOCALE 'C.UTF-8'",
        )
    if not owner:
        raise HubError(f'role "{role}" of hub.dsn does not own database "{name}"')
    if not may_create_roles:
        raise HubError(
            f'role "{role}" of hub.dsn may not create roles', hint=f'ALTER ROLE "{role}" CREATEROLE'
        )


async def _up_to_date(connection: AsyncConnection[TupleRow]) -> bool:
    cursor = await connection.execute(
        "SELECT to_regclass('oar_internal.version') IS NOT NULL,"
        " (SELECT count(*) FROM pg_roles WHERE rolname = ANY(%s))",
        (list(_ROLES),),
    )
    known, roles = await cursor.fetchone() or (False, 0)
    if not known:
        return False
    cursor = await connection.execute("SELECT version FROM oar_internal.version")
    (version,) = await cursor.fetchone() or (0,)
    if version > VERSION:
        raise HubError(
            f"the hub was set up by a newer oar (version {version} of its tables, not {VERSION})",
            hint="run that version, or one that is newer still",
        )
    # Roles belong to the server, not the database: a restored dump arrives without them.
    return bool(version == VERSION and roles == len(_ROLES))


async def _create_roles(connection: AsyncConnection[TupleRow]) -> None:
    cursor = await connection.execute("SELECT rolname FROM pg_roles")
    present = {name for (name,) in await cursor.fetchall()}
    for role in _ROLES:
        name = sql.Identifier(role)
        if role not in present:
            await connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(name))
    if not await _superuser(connection):
        # Creating a role does not by itself allow SET ROLE to it (PostgreSQL 16).
        await connection.execute(
            sql.SQL("GRANT {} TO CURRENT_USER").format(
                sql.SQL(", ").join(map(sql.Identifier, _ROLES))
            )
        )


async def _superuser(connection: AsyncConnection[TupleRow]) -> bool:
    cursor = await connection.execute("SELECT current_setting('is_superuser') = 'on'")
    (answer,) = await cursor.fetchone() or (False,)
    return bool(answer)


async def _restrict_database(connection: AsyncConnection[TupleRow]) -> None:
    name = sql.Identifier(connection.info.dbname)
    await connection.execute(
        sql.SQL(
            "REVOKE ALL ON DATABASE {0} FROM PUBLIC;"
            "GRANT CONNECT, TEMPORARY ON DATABASE {0} TO oar_client, oar_auditor"
        ).format(name)
    )


async def _revoke_large_objects(connection: AsyncConnection[TupleRow]) -> None:
    if not await _superuser(connection):
        _log.warning(
            "hub: only a superuser can take large objects from clients",
            hint="as one, in the hub's database: REVOKE EXECUTE ON FUNCTION "
            + ", ".join(_LARGE_OBJECT_WRITERS)
            + " FROM PUBLIC",
        )
        return
    await connection.execute(
        "REVOKE EXECUTE ON FUNCTION "
        + ", ".join(f"pg_catalog.{function}" for function in _LARGE_OBJECT_WRITERS)
        + " FROM PUBLIC"
    )
