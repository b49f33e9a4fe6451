-- What every hub holds before anything is published: roles, schemas, functions, revocations. Runs
-- as the proxy's own role, in one transaction, in a hub of any age: whatever older texts of this have
-- made becomes what this one says. Client roles own nothing and may create nothing but temporary
-- objects: they can leave nothing behind.

-- Roles are the server's, not the database's: another hub may have made them.
DO $$
DECLARE
    group_name text;
BEGIN
    FOREACH group_name IN ARRAY ARRAY['oar_client', 'oar_auditor', 'oar_planner', 'oar_checker']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = group_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', group_name);
        END IF;
        IF pg_catalog.current_setting('is_superuser') = 'off' THEN
            -- Creating a role does not by itself allow SET ROLE to it (PostgreSQL 16).
            EXECUTE format('GRANT %I TO CURRENT_USER', group_name);
        END IF;
    END LOOP;
    -- As clients are, and none of them: members of a role may do what they like with what it owns.
    IF NOT pg_catalog.pg_has_role('oar_checker', 'oar_client', 'MEMBER') THEN
        GRANT oar_client TO oar_checker;
    END IF;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', pg_catalog.current_database());
    EXECUTE format('GRANT CONNECT, TEMPORARY ON DATABASE %I TO oar_client, oar_auditor',
                   pg_catalog.current_database());
END $$;

-- Each of these writes a large object, which would outlive the session that wrote it.
DO $$
DECLARE
    writers constant text := concat_ws(', ',
        'lo_create(oid)', 'lo_creat(integer)', 'lo_from_bytea(oid, bytea)', 'lo_import(text)',
        'lo_import(text, oid)', 'lo_put(oid, bigint, bytea)', 'lo_truncate(integer, integer)',
        'lo_truncate64(integer, bigint)', 'lo_unlink(oid)', 'lowrite(integer, bytea)');
BEGIN
    IF pg_catalog.current_setting('is_superuser') = 'on' THEN
        EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || writers || ' FROM PUBLIC';
    ELSE
        RAISE WARNING 'only a superuser can take large objects from clients'
            USING HINT = 'as one, in the hub''s database: REVOKE EXECUTE ON FUNCTION '
                         || writers || ' FROM PUBLIC';
    END IF;
END $$;

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

CREATE OR REPLACE FUNCTION oar_internal.guard(schema_name text, table_name text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = pg_catalog.format('table "%s.%s" was reached by a statement form that the proxy does not '
                         'evaluate', schema_name, table_name),
        HINT = 'use it in a SELECT, a WITH, a COPY (SELECT ...) TO STDOUT, a cursor or a CREATE '
               'TEMP TABLE AS, not inside a function or a DO block'
               OPERATOR(pg_catalog.||)
               CASE WHEN pg_catalog.current_setting('standard_conforming_strings')
                  OPERATOR(pg_catalog.=) 'off' THEN '; backslashes in it need standard_conforming_strings' ELSE '' END;
END $body$;

-- What the form of a table reads that a policy hides by now, where something stands on it.
CREATE OR REPLACE FUNCTION oar_internal.withdrawn()
RETURNS SETOF record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '42501',
        MESSAGE = 'a view reads a table in a form that is not published any more',
        HINT = 'have the hub''s administrator make the view anew over what is published now';
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

-- What a portal is given as a parameter, for a statement that takes none. Immutable, so that it is
-- read while that is planned, and planned for; each look takes one of the portal's rows.
CREATE OR REPLACE FUNCTION oar_internal.given(portal text, type anyelement)
RETURNS anyelement LANGUAGE plpgsql IMMUTABLE SECURITY INVOKER AS $body$
DECLARE
    rows_of_it pg_catalog.refcursor := portal;
    value type%TYPE;
BEGIN
    FETCH rows_of_it INTO value;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'XX000', MESSAGE = 'what a statement was given is used up';
    END IF;
    RETURN value;
END $body$;

CREATE OR REPLACE FUNCTION oar_internal.view_definition(view oid)
RETURNS text LANGUAGE sql STABLE SECURITY INVOKER SET search_path = '' AS $body$
    SELECT pg_catalog.pg_get_viewdef(view, false)
$body$;

-- A planner evaluates what is said to be immutable, whoever has made it: as these roles then. The
-- session began as the proxy's own, to which nothing inside of such a function can go back. What is
-- set meanwhile is undone with the block.
DROP FUNCTION IF EXISTS oar_internal.explained_as_oar_client(text);
DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['oar_planner', 'oar_checker'] LOOP
        EXECUTE format($create$
            CREATE OR REPLACE FUNCTION oar_internal.explained_as_%1$s(statement text)
            RETURNS json LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $body$
            DECLARE
                planned pg_catalog.json;
            BEGIN
                BEGIN
                    FOR planned IN EXECUTE
                        'EXPLAIN (VERBOSE, FORMAT JSON) ' OPERATOR(pg_catalog.||) statement
                    LOOP END LOOP;
                    RAISE SQLSTATE 'OAPLN';
                EXCEPTION WHEN SQLSTATE 'OAPLN' THEN
                    RETURN planned;
                END;
            END $body$;
            REVOKE ALL ON FUNCTION oar_internal.explained_as_%1$s(text) FROM PUBLIC;
            GRANT CREATE ON SCHEMA oar_internal TO %1$I;
            ALTER FUNCTION oar_internal.explained_as_%1$s(text) OWNER TO %1$I;
            REVOKE CREATE ON SCHEMA oar_internal FROM %1$I;
            $create$, role_name);
    END LOOP;
END $$;

-- What the proxy asks a session about itself: a plan of its own each session, made once. In the
-- session's own search path, so each name and operator says its schema: PostgreSQL has none for oid
-- and integer, for one, and would take somebody's that is for exactly these.
CREATE OR REPLACE FUNCTION oar_internal.session_state(settings text[])
RETURNS text LANGUAGE plpgsql STABLE SECURITY INVOKER
SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
    RETURN pg_catalog.json_build_object(
        'principal', session_user,
        'roles', ARRAY(SELECT r.rolname FROM pg_catalog.pg_roles r
            WHERE r.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
            AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')),
        'search_path', ARRAY(SELECT pg_catalog.quote_ident(s)
            FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS s),
        -- Those in which somebody else than an administrator may make functions and operators.
        'open_schemas', ARRAY(SELECT n.nspname FROM pg_catalog.pg_namespace n
            WHERE n.nspname OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(false)) AND EXISTS (
                SELECT FROM (SELECT n.nspowner AS maker UNION ALL
                    SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) AS a
                    WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE') AS may
                WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r
                    WHERE r.oid OPERATOR(pg_catalog.=) may.maker AND (r.rolsuper
                        OR r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'
                        OR r.oid OPERATOR(pg_catalog.=) ANY (
                            SELECT d.datdba FROM pg_catalog.pg_database d
                            WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
                            UNION ALL
                            SELECT o.nspowner FROM pg_catalog.pg_namespace o
                            WHERE o.nspname OPERATOR(pg_catalog.=) 'oar_internal'))))),
        'settings', (SELECT pg_catalog.json_object_agg(s, pg_catalog.current_setting(s, true))
            FROM pg_catalog.unnest(settings) AS s),
        'transaction', CASE WHEN pg_catalog.current_setting('transaction_isolation')
            OPERATOR(pg_catalog.=) ANY ('{repeatable read,serializable}'::pg_catalog.text[]) THEN pg_catalog.now()::pg_catalog.text END
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
                AS p(schema, name) WHERE p.schema OPERATOR(pg_catalog.=) c.nspname
                AND p.name OPERATOR(pg_catalog.=) c.relname)
        THEN pg_catalog.json_build_object(
            'definition', CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'v'
                AND c.nspname OPERATOR(pg_catalog.<>) ALL (
                    '{pg_catalog,information_schema,oar}'::pg_catalog.name[])
                THEN oar_internal.view_definition(c.oid) END,
            -- A view reads as whoever owns it, unless it says otherwise.
            'as_owner', c.relkind OPERATOR(pg_catalog.=) 'v'
                AND pg_catalog.pg_get_userbyid(c.relowner) OPERATOR(pg_catalog.<>) current_user
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_options_to_table(c.reloptions) AS o
                    WHERE o.option_name OPERATOR(pg_catalog.=) 'security_invoker'
                    AND o.option_value::boolean),
            'row_security', c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p}'::pg_catalog."char"[])
                AND pg_catalog.row_security_active(c.oid),
            'columns', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(a.attname,
                pg_catalog.format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid
                AND a.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2 AND NOT a.attisdropped),
            'collates', EXISTS (SELECT FROM pg_catalog.pg_attribute a
                JOIN pg_catalog.pg_collation l ON l.oid OPERATOR(pg_catalog.=) a.attcollation
                WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid
                AND a.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2
                AND NOT (l.collnamespace OPERATOR(pg_catalog.=)
                    'pg_catalog'::pg_catalog.regnamespace::pg_catalog.oid
                    AND l.collname OPERATOR(pg_catalog.=) ANY (
                        '{default,C,POSIX,ucs_basic,pg_c_utf8}'::pg_catalog.name[]))))
        END))
        FROM ROWS FROM (pg_catalog.unnest(names)) WITH ORDINALITY AS u(name, number)
        CROSS JOIN LATERAL (
            -- By itself, so that it is found by its index and not by reading all there are.
            SELECT c.oid, c.relname, c.relkind, c.relowner, c.reloptions, n.nspname
            FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
            WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(u.name)::pg_catalog.oid
            OFFSET 0) AS c)::pg_catalog.text;
END $body$;

-- Waits until the proxy has what it asks elsewhere for the session; see hub/sentinel.py. How long
-- that may take is the proxy's business, and the session's statement_timeout. Any client can see the
-- lock and queue for it, too: once a second it is looked at whether one still holds it that may write
-- the ledger, as the proxy does.
CREATE OR REPLACE FUNCTION oar_internal.wait_for_proxy(key bigint)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET lock_timeout = '1s' SET client_min_messages = notice AS $body$
BEGIN
    RAISE NOTICE 'waiting';  -- to the proxy, which it leaves at once
    LOOP
        BEGIN
            PERFORM pg_catalog.pg_advisory_lock_shared(key);
            PERFORM pg_catalog.pg_advisory_unlock_shared(key);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF NOT EXISTS (
                SELECT FROM pg_catalog.pg_locks AS l
                JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) l.pid
                WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.granted
                  AND l.objsubid OPERATOR(pg_catalog.=) 1::pg_catalog.int2
                  AND l.mode OPERATOR(pg_catalog.=) 'ExclusiveLock'
                  AND a.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
                  AND ((l.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32)
                      OPERATOR(pg_catalog.|) l.objid::pg_catalog.int8) OPERATOR(pg_catalog.=) key
                  AND pg_catalog.has_table_privilege(
                      a.usesysid, pg_catalog.to_regclass('oar_internal.entries'), 'INSERT')
            ) THEN
                RETURN;
            END IF;
        END;
    END LOOP;
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
GRANT EXECUTE ON FUNCTION oar_internal.guard(text, text), oar_internal.withdrawn(),
    oar_internal.given(text, anyelement), oar_internal.view_definition(oid),
    oar_internal.session_state(text[]), oar_internal.named(text[], text[], text[]),
    oar_internal.wait_for_proxy(bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION oar_internal.any_row(), oar_internal.any_table() TO oar_planner;

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
    WHERE NOT p.content ? 'hidden'
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
    WHERE NOT p.content ? 'hidden'
    ORDER BY p.position, c.place;

CREATE OR REPLACE VIEW oar.owners AS
    SELECT o.owner, count(*)::integer AS tables
    FROM oar_internal.published AS p,
         jsonb_array_elements_text(p.content->'owners') AS o(owner)
    WHERE NOT p.content ? 'hidden'
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

-- Which oar set the hub up, and with which text; the number is for those of before there was a text.
CREATE TABLE IF NOT EXISTS oar_internal.version (version integer NOT NULL);
ALTER TABLE oar_internal.version ADD COLUMN IF NOT EXISTS release text,
    ADD COLUMN IF NOT EXISTS digest text;
REVOKE ALL ON oar_internal.version FROM PUBLIC;
