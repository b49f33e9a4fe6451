-- Which policies are in force at each proxy: see inforce.py.
CREATE TABLE IF NOT EXISTS oar_internal.policies (
  proxy text NOT NULL,
  owner text NOT NULL,
  digest text NOT NULL,
  source text NOT NULL,
  since timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (proxy, owner)
);
CREATE TABLE IF NOT EXISTS oar_internal.policy_readings (
  proxy text PRIMARY KEY,
  read_at timestamptz,
  failed_at timestamptz,
  failure text
);
REVOKE ALL ON oar_internal.policies, oar_internal.policy_readings FROM PUBLIC;
CREATE OR REPLACE VIEW oar.policies WITH (security_barrier) AS
SELECT p.proxy, p.owner, p.digest AS policy, p.source, p.since, r.read_at, r.failed_at, r.failure
FROM oar_internal.policies AS p
JOIN oar_internal.policy_readings AS r USING (proxy)
WHERE (SELECT pg_has_role(session_user, 'oar_auditor', 'MEMBER'));
GRANT SELECT ON oar.policies TO oar_client, oar_auditor;
COMMENT ON VIEW oar.policies IS 'policies in force, and the last time they could not be read';
