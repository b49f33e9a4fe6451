-- The ledger of hubs that had a table for each kind of entry, ask by ask in the order of their time,
-- as the bodies of entries that take its place.
SELECT json_build_object(
         'ask', a.ask, 'at', a.at, 'principal', a.principal, 'statement', a.statement,
         'asked', a.kind, 'route', a.route, 'kappa', a.kappa, 'catalog_version', a.catalog_version,
         -- Asks of before there was a choice are compiled ones.
         'protocol', coalesce(to_jsonb(a)->>'protocol', 'compiled')),
       (SELECT json_agg(json_build_object(
          'number', s.step, 'at', s.at, 'owner', s.owner, 'sql_digest', s.sql_digest,
          'row_cap', s.row_cap, 'row_cap_rule', s.row_cap_rule, 'keys', s.keys, 'policy', s.policy,
          'disclosures', (
            SELECT coalesce(json_agg(json_build_object(
              'from_owner', d.from_owner, 'from_column', d.from_column, 'to_owner', d.to_owner,
              'to_column', d.to_column, 'keys', d.keys, 'rule', d.rule, 'policy', d.policy)
              ORDER BY d.disclosure), '[]')
            FROM oar_internal.disclosures AS d WHERE d.step = s.step),
          'outcome', (
            SELECT json_build_object('at', o.at, 'sqlstate', o.sqlstate, 'rows', o.rows)
            FROM oar_internal.step_outcomes AS o WHERE o.step = s.step))
          ORDER BY s.step)
        FROM oar_internal.steps AS s WHERE s.ask = a.ask),
       (SELECT json_build_object('at', o.at, 'sqlstate', o.sqlstate, 'rows', o.rows)
        FROM oar_internal.ask_outcomes AS o WHERE o.ask = a.ask)
FROM oar_internal.asks AS a
ORDER BY a.at, a.ask
