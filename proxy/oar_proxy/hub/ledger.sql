-- The ledger. Runs after bootstrap.sql, in the same transaction.

-- A hub that had a table for each kind of entry had other views of these names over them.
DO $$
BEGIN
  IF pg_catalog.to_regclass('oar_internal.asks') IS NOT NULL THEN
    DROP VIEW IF EXISTS oar.asks, oar.steps, oar.disclosures;
  END IF;
END $$;

-- What an entry says is its body, canonical JSON, and that alone is what its hash covers. The other
-- columns repeat parts of it, to be found by; `oar audit verify` compares them.
CREATE TABLE IF NOT EXISTS oar_internal.entries (
  entry bigint GENERATED ALWAYS AS IDENTITY,
  writer uuid NOT NULL,
  number bigint NOT NULL CHECK (number > 0),
  at timestamptz NOT NULL,
  kind text NOT NULL,
  ask uuid,
  step bigint,
  principal text,
  body text NOT NULL,
  hash bytea NOT NULL CHECK (octet_length(hash) = 32),
  PRIMARY KEY (writer, number)
);
CREATE INDEX IF NOT EXISTS entries_ask ON oar_internal.entries (ask) WHERE ask IS NOT NULL;
CREATE INDEX IF NOT EXISTS entries_principal_at ON oar_internal.entries (principal, at)
  WHERE kind = 'ask';
CREATE INDEX IF NOT EXISTS entries_step ON oar_internal.entries (entry) WHERE kind = 'step';
CREATE INDEX IF NOT EXISTS entries_naming ON oar_internal.entries (kind)
  WHERE kind IN ('open', 'link', 'checkpoint');
CREATE INDEX IF NOT EXISTS entries_at ON oar_internal.entries USING brin (at);

-- The key that keys are digested under. One row.
CREATE TABLE IF NOT EXISTS oar_internal.ledger_key (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  key bytea NOT NULL
);

-- Keys of an owner that left for a principal on a day in UTC, for limits of the day. All proxies
-- count here; the entries have them too, and are what is kept.
CREATE TABLE IF NOT EXISTS oar_internal.keys_of_days (
  principal text NOT NULL,
  owner text NOT NULL,
  day date NOT NULL,
  keys bigint NOT NULL CHECK (keys >= 0),
  PRIMARY KEY (principal, owner, day)
);

-- Which keys those were, as digests under the ledger's key, so that none counts twice. They go when
-- their day is over.
CREATE TABLE IF NOT EXISTS oar_internal.keys_seen (
  principal text NOT NULL,
  owner text NOT NULL,
  day date NOT NULL,
  digest bytea NOT NULL,
  PRIMARY KEY (principal, owner, day, digest)
);
CREATE INDEX IF NOT EXISTS keys_seen_day ON oar_internal.keys_seen (day);

-- What applications with a budget asked of the owners, by the hour. All proxies count here.
CREATE TABLE IF NOT EXISTS oar_internal.application_hours (
  application text NOT NULL,
  hour timestamptz NOT NULL,
  statements bigint NOT NULL CHECK (statements >= 0),
  rows bigint NOT NULL CHECK (rows >= 0),
  PRIMARY KEY (application, hour)
);

-- What is written stays, until a checkpoint on the ledger stands for it.
CREATE OR REPLACE FUNCTION oar_internal.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'the ledger is append-only: % of %.% refused',
      lower(TG_OP), TG_TABLE_SCHEMA, TG_TABLE_NAME
    USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE OR REPLACE FUNCTION oar_internal.refuse_loss() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  IF EXISTS (
    SELECT FROM gone
    LEFT JOIN (
      SELECT p.writer, max(p.number) AS number
      FROM oar_internal.entries AS c,
           json_to_recordset(c.body::json->'pruned') AS p(writer uuid, number int8)
      WHERE c.kind = 'checkpoint'
      GROUP BY p.writer
    ) AS pruned USING (writer)
    WHERE pruned.number IS NULL OR gone.number > pruned.number
  ) THEN
    RAISE EXCEPTION 'the ledger is append-only: delete of %.% refused',
        TG_TABLE_SCHEMA, TG_TABLE_NAME
      USING ERRCODE = 'insufficient_privilege', HINT = 'oar audit prune deletes old entries';
  END IF;
  RETURN NULL;
END
$$;

-- ENABLE ALWAYS, so that session_replication_role does not switch it off.
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR TRUNCATE
  ON oar_internal.entries FOR EACH STATEMENT EXECUTE FUNCTION oar_internal.refuse_change();
CREATE OR REPLACE TRIGGER kept AFTER DELETE
  ON oar_internal.entries REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION oar_internal.refuse_loss();
ALTER TABLE oar_internal.entries ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE oar_internal.entries ENABLE ALWAYS TRIGGER kept;

-- Clients may use the schema; of the ledger they get the views below and nothing else.
REVOKE ALL ON oar_internal.entries, oar_internal.ledger_key, oar_internal.keys_of_days,
  oar_internal.keys_seen, oar_internal.application_hours FROM PUBLIC;
REVOKE ALL ON FUNCTION oar_internal.refuse_change(), oar_internal.refuse_loss() FROM PUBLIC;

-- The views run with their owner's rights and decide by session_user, which SET ROLE does not
-- change. security_barrier keeps a reader's own functions away from rows that are not theirs.
CREATE OR REPLACE VIEW oar.asks WITH (security_barrier) AS
SELECT e.ask, e.at, e.principal, a.statement, a.asked AS kind, a.route, a.kappa, a.catalog_version,
       o.at AS finished_at, b.sqlstate, b.rows, coalesce(a.protocol, 'compiled') AS protocol,
       a.purpose, b.refusal, coalesce(a.verified, '{}') AS verified, a.roles
FROM oar_internal.entries AS e
CROSS JOIN LATERAL json_to_record(e.body::json)
  AS a(statement text, asked text, route text, kappa int4, catalog_version text, protocol text,
       purpose text, verified text[], roles text[])
LEFT JOIN oar_internal.entries AS o ON o.ask = e.ask AND o.kind = 'ask_outcome'
LEFT JOIN LATERAL json_to_record(o.body::json) AS b(sqlstate text, rows int8, refusal text) ON true
WHERE e.kind = 'ask'
  AND (e.principal = session_user::text
       OR (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER')));

-- Whoever may see groups only is not told how many rows and keys there were behind them: those
-- numbers are auditors' alone, of every step of an ask that a min_group was about.
CREATE OR REPLACE VIEW oar_internal.grouped_asks AS
SELECT e.ask
FROM oar_internal.entries AS e
CROSS JOIN LATERAL json_to_record(e.body::json) AS s(rules text[])
WHERE e.kind = 'step'
  AND EXISTS (SELECT FROM unnest(s.rules) AS r(rule) WHERE r.rule LIKE '%.min\_group');
REVOKE ALL ON oar_internal.grouped_asks FROM PUBLIC;

CREATE OR REPLACE VIEW oar.steps WITH (security_barrier) AS
SELECT e.entry AS step, e.ask, e.at, q.principal, s.owner, s.sql_digest, s.row_cap, s.row_cap_rule,
       CASE WHEN n.told THEN s.keys END AS keys, s.policy, o.at AS finished_at, b.sqlstate,
       CASE WHEN n.told THEN b.rows END AS rows,
       CASE WHEN n.told THEN b.microseconds END AS microseconds, s.rules, s.tables
FROM oar_internal.entries AS e
JOIN oar_internal.entries AS q ON q.ask = e.ask AND q.kind = 'ask'
CROSS JOIN LATERAL json_to_record(e.body::json)
  AS s(owner text, sql_digest text, row_cap int8, row_cap_rule text, keys int8, policy text,
       rules text[], tables text[])
LEFT JOIN oar_internal.entries AS o
  ON o.ask = e.ask AND o.kind = 'step_outcome' AND o.step = e.number AND o.writer = e.writer
LEFT JOIN LATERAL json_to_record(o.body::json)
  AS b(sqlstate text, rows int8, microseconds int8) ON true
CROSS JOIN LATERAL (SELECT (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER'))
  OR NOT EXISTS (SELECT FROM oar_internal.grouped_asks AS g WHERE g.ask = e.ask)) AS n(told)
WHERE e.kind = 'step'
  AND (q.principal = session_user::text
       OR (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER')));

CREATE OR REPLACE VIEW oar.disclosures WITH (security_barrier) AS
SELECT e.at, e.ask, e.entry AS step, q.principal, d.from_owner, d.from_column, d.to_owner,
       d.to_column, CASE WHEN n.told THEN d.keys END AS keys, d.rule, s.sql_digest, d.policy,
       CASE WHEN n.told THEN d.key_digest END AS key_digest
FROM oar_internal.entries AS e
JOIN oar_internal.entries AS q ON q.ask = e.ask AND q.kind = 'ask'
CROSS JOIN LATERAL json_to_record(e.body::json) AS s(sql_digest text, disclosures json)
CROSS JOIN LATERAL json_to_recordset(s.disclosures)
  AS d(from_owner text, from_column text, to_owner text, to_column text, keys int8, rule text,
       policy text, key_digest text)
CROSS JOIN LATERAL (SELECT (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER'))
  OR NOT EXISTS (SELECT FROM oar_internal.grouped_asks AS g WHERE g.ask = e.ask)) AS n(told)
WHERE e.kind = 'step'
  AND (q.principal = session_user::text
       OR (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER')));

CREATE OR REPLACE VIEW oar.applications AS
SELECT application, hour, statements, rows FROM oar_internal.application_hours;
GRANT SELECT ON oar.applications TO oar_auditor;

GRANT SELECT ON oar.asks, oar.steps, oar.disclosures TO oar_client, oar_auditor;

COMMENT ON VIEW oar.asks IS 'Statements and questions asked, with their outcome where it is known';
COMMENT ON VIEW oar.steps IS 'Queries sent to owners; without an outcome it is unknown';
COMMENT ON VIEW oar.applications IS 'What applications with a budget asked of owners, by the hour';
COMMENT ON VIEW oar.disclosures IS 'Join keys of one owner that were sent to another';
