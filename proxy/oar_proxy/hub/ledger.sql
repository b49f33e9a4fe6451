-- The ledger. Idempotent; runs as the proxy's own role inside one transaction, in a hub that has its
-- roles and schemas already.

-- Two proxies that start at once must not both create.
SELECT pg_advisory_xact_lock(hashtextextended('oar ledger install', 0));

CREATE TABLE IF NOT EXISTS oar_internal.asks (
  ask uuid PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now(),
  principal text NOT NULL,
  statement text NOT NULL CHECK (statement ~ '^[0-9a-f]{64}$'),
  kind text NOT NULL CHECK (kind IN ('sql', 'question')),
  route text NOT NULL,
  kappa integer CHECK (kappa >= 0),
  catalog_version text NOT NULL
);
-- Asks of before there was a choice are compiled ones.
ALTER TABLE oar_internal.asks ADD COLUMN IF NOT EXISTS protocol text NOT NULL DEFAULT 'compiled';
CREATE INDEX IF NOT EXISTS asks_principal_at ON oar_internal.asks (principal, at);

CREATE TABLE IF NOT EXISTS oar_internal.steps (
  step bigserial PRIMARY KEY,
  ask uuid NOT NULL REFERENCES oar_internal.asks,
  at timestamptz NOT NULL DEFAULT now(),
  owner text NOT NULL,
  sql_digest text NOT NULL CHECK (sql_digest ~ '^[0-9a-f]{64}$'),
  row_cap bigint NOT NULL CHECK (row_cap > 0),
  row_cap_rule text NOT NULL,
  keys bigint NOT NULL CHECK (keys >= 0),
  policy text NOT NULL
);
CREATE INDEX IF NOT EXISTS steps_ask ON oar_internal.steps (ask);

CREATE TABLE IF NOT EXISTS oar_internal.disclosures (
  disclosure bigserial PRIMARY KEY,
  step bigint NOT NULL REFERENCES oar_internal.steps,
  from_owner text NOT NULL,
  from_column text NOT NULL,
  to_owner text NOT NULL,
  to_column text NOT NULL,
  keys bigint NOT NULL CHECK (keys >= 0),
  rule text NOT NULL,
  policy text NOT NULL
);
CREATE INDEX IF NOT EXISTS disclosures_step ON oar_internal.disclosures (step);

CREATE TABLE IF NOT EXISTS oar_internal.step_outcomes (
  step bigint PRIMARY KEY REFERENCES oar_internal.steps,
  at timestamptz NOT NULL DEFAULT now(),
  sqlstate text NOT NULL CHECK (sqlstate ~ '^[0-9A-Z]{5}$'),
  rows bigint CHECK (rows >= 0)
);

CREATE TABLE IF NOT EXISTS oar_internal.ask_outcomes (
  ask uuid PRIMARY KEY REFERENCES oar_internal.asks,
  at timestamptz NOT NULL DEFAULT now(),
  sqlstate text NOT NULL CHECK (sqlstate ~ '^[0-9A-Z]{5}$'),
  rows bigint CHECK (rows >= 0)
);

-- What is written stays. ENABLE ALWAYS, so that session_replication_role does not switch it off.
CREATE OR REPLACE FUNCTION oar_internal.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'the ledger is append-only: % of %.% refused',
      lower(TG_OP), TG_TABLE_SCHEMA, TG_TABLE_NAME
    USING ERRCODE = 'insufficient_privilege';
END
$$;

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY
    ARRAY['asks', 'steps', 'disclosures', 'step_outcomes', 'ask_outcomes']
  LOOP
    EXECUTE format(
      'CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE
         ON oar_internal.%I FOR EACH STATEMENT EXECUTE FUNCTION oar_internal.refuse_change()',
      name);
    EXECUTE format('ALTER TABLE oar_internal.%I ENABLE ALWAYS TRIGGER append_only', name);
  END LOOP;
END
$$;

-- Makes the commit of the transaction that calls it wait for the disk, and for a standby that the
-- hub is configured to wait for. A setting made with is_local lasts until after the commit record.
CREATE OR REPLACE FUNCTION oar_internal.commit_durably() RETURNS void
LANGUAGE sql VOLATILE AS $$
  SELECT CASE
    WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
    THEN set_config('synchronous_commit', 'on', true)
  END
$$;

-- Clients may use the schema; of the ledger they get the views below and nothing else.
REVOKE ALL ON oar_internal.asks, oar_internal.steps, oar_internal.disclosures,
  oar_internal.step_outcomes, oar_internal.ask_outcomes FROM PUBLIC;
REVOKE ALL ON FUNCTION oar_internal.refuse_change(), oar_internal.commit_durably() FROM PUBLIC;

-- The views run with their owner's rights and decide by session_user, which SET ROLE does not
-- change. security_barrier keeps a reader's own functions away from rows that are not theirs.
CREATE OR REPLACE VIEW oar.asks WITH (security_barrier) AS
SELECT a.ask, a.at, a.principal, a.statement, a.kind, a.route, a.kappa, a.catalog_version,
       o.at AS finished_at, o.sqlstate, o.rows, a.protocol
FROM oar_internal.asks AS a
LEFT JOIN oar_internal.ask_outcomes AS o USING (ask)
WHERE a.principal = session_user::text
   OR (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER'));

CREATE OR REPLACE VIEW oar.steps WITH (security_barrier) AS
SELECT s.step, s.ask, s.at, a.principal, s.owner, s.sql_digest, s.row_cap, s.row_cap_rule, s.keys,
       s.policy, o.at AS finished_at, o.sqlstate, o.rows
FROM oar_internal.steps AS s
JOIN oar_internal.asks AS a USING (ask)
LEFT JOIN oar_internal.step_outcomes AS o USING (step)
WHERE a.principal = session_user::text
   OR (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER'));

CREATE OR REPLACE VIEW oar.disclosures WITH (security_barrier) AS
SELECT s.at, s.ask, s.step, a.principal, d.from_owner, d.from_column, d.to_owner, d.to_column,
       d.keys, d.rule, s.sql_digest, d.policy
FROM oar_internal.disclosures AS d
JOIN oar_internal.steps AS s USING (step)
JOIN oar_internal.asks AS a USING (ask)
WHERE a.principal = session_user::text
   OR (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER'));

GRANT SELECT ON oar.asks, oar.steps, oar.disclosures TO oar_client, oar_auditor;

COMMENT ON VIEW oar.asks IS 'Statements and questions asked, with their outcome where it is known';
COMMENT ON VIEW oar.steps IS 'Queries sent to owners; without an outcome it is unknown';
COMMENT ON VIEW oar.disclosures IS 'Join keys of one owner that were sent to another';
