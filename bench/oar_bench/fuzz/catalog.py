"""What PostgreSQL's catalog has to call: functions, operators, aggregates, casts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg


@dataclass(frozen=True, slots=True)
class Call:
    """Something an expression may call; types are ``format_type`` names.

    ``kind`` is ``function``, ``operator``, ``aggregate``, ``window`` or ``cast``. A prefix operator
    has one argument. ``direct`` says how many arguments of an aggregate stand before its WITHIN
    GROUP, None where it has none.
    """

    kind: str
    name: str
    arguments: tuple[str, ...]
    result: str
    returns_set: bool = False
    direct: int | None = None


_CATALOG: Final = r"""
SELECT CASE p.prokind WHEN 'f' THEN 'function' WHEN 'a' THEN 'aggregate' ELSE 'window' END,
       p.proname::text,
       ARRAY(SELECT format_type(CASE WHEN n = p.pronargs AND t <> '"any"'::regtype
                                     THEN coalesce(nullif(p.provariadic, 0), t) ELSE t END, NULL)
               FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a(t, n) ORDER BY n),
       format_type(p.prorettype, NULL), p.proretset,
       (SELECT a.aggnumdirectargs::int FROM pg_aggregate AS a
         WHERE a.aggfnoid = p.oid AND a.aggkind <> 'n')
  FROM pg_proc AS p
 WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a', 'w')
   AND p.provolatile <> 'v'
   -- Steps of aggregates take what the steps before them made.
   AND NOT EXISTS (SELECT FROM pg_aggregate AS a
                    WHERE p.oid IN (a.aggtransfn, a.aggmtransfn, a.aggfinalfn, a.aggmfinalfn))
UNION ALL
SELECT 'operator', o.oprname::text,
       ARRAY(SELECT format_type(t, NULL)
               FROM unnest(ARRAY[nullif(o.oprleft, 0), o.oprright]) AS a(t) WHERE t IS NOT NULL),
       format_type(o.oprresult, NULL), false, NULL
  FROM pg_operator AS o JOIN pg_proc AS p ON p.oid = o.oprcode
 WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND p.provolatile <> 'v'
UNION ALL
SELECT 'cast', '', ARRAY[format_type(castsource, NULL)], format_type(casttarget, NULL), false, NULL
  FROM pg_cast
 ORDER BY 1, 2, 3, 4
"""

_NO_VALUES: Final = frozenset(
    {"internal", "cstring", "trigger", "event_trigger", "void", "unknown"}
)

_OF_THE_SERVER: Final = re.compile(
    r"pg_(?!input|lsn|size_(pretty|bytes)|typeof|collation_for)\w*|has_\w*|to_reg\w*|"
    r"\w*_to_xml\w*|current_\w+|(\w+_)?user|inet_(client|server)_\w+|version|\w*send|"
    r"txid_\w*|mxid_age|age|row_security_active|getdatabaseencoding|(col|obj|shobj)_description|"
    r"acl\w+|makeaclitem|ts_stat|format_type|now|(statement|transaction)_timestamp|getpgusername|"
    r"binary_upgrade\w*|RI_\w*|\w+(_support|sel|_finalfn|_final)"
)
"""Functions of a server, of its catalogs, of a moment, or of PostgreSQL's own insides."""


async def read_catalog(connection: psycopg.AsyncConnection[Any]) -> Sequence[Call]:
    """Return what of the catalog gives the same answer to the same values, whoever asks."""
    cursor = await connection.execute(_CATALOG.encode())
    found = [
        Call(kind, name, _both(arguments, direct), result, returns_set, direct)
        async for kind, name, arguments, result, returns_set, direct in cursor
    ]
    return [
        call
        for call in found
        if _OF_THE_SERVER.fullmatch(call.name) is None
        and not _NO_VALUES.intersection((*call.arguments, call.result))
    ]


def _both(arguments: Sequence[str], direct: int | None) -> tuple[str, ...]:
    """Return the arguments of an aggregate also where rows are as its direct ones are, any."""
    if direct is None or len(arguments) > direct:
        return tuple(arguments)
    return ("anyelement",) * (2 * direct)
