"""What a PostgreSQL owner publishes, read from its catalogs in one snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from oar_adapters.encodings import UTF8
from oar_adapters.interface import (
    BINARY_TYPES,
    Agreement,
    Column,
    OwnerSchema,
    Table,
)
from oar_adapters.postgres.sql import plain_type, publishable
from oar_adapters.predicates import TEXTS

DEFAULT_ROWS: Final = 1000.0
"""Rows assumed where the owner keeps no statistics: PostgreSQL's own guess for a set function."""

WIDE_BYTES: Final = 1000
"""Bytes a row that a table keeps apart from its rows, from which it is wide."""

EQUALITY_IN_TEXT_FORMAT: Final = frozenset(
    {
        "bit",
        "bit varying",
        "bpchar",
        "cidr",
        "inet",
        "interval",
        "jsonb",
        "macaddr",
        "macaddr8",
        "time with time zone",
    }
)
"""Text-format types with a default btree order, which the owner and the hub share."""

RELATIONS: Final = """
SELECT c.oid::int8 AS oid, n.nspname::text AS schema, c.relname::text AS name,
       c.relkind::text AS kind,
       obj_description(c.oid, 'pg_class') AS comment,
       CASE WHEN c.relkind <> 'p' OR c.reltuples >= 0 THEN c.reltuples::float8
            ELSE (SELECT sum(greatest(leaf.reltuples, 0))::float8
                    FROM pg_partition_tree(c.oid) AS part
                    JOIN pg_class AS leaf ON leaf.oid = part.relid
                   WHERE part.isleaf) END AS rows,
       CASE WHEN c.relkind <> 'p' THEN pg_relation_size(nullif(c.reltoastrelid, 0))
            ELSE (SELECT sum(pg_relation_size(nullif(leaf.reltoastrelid, 0)))::int8
                    FROM pg_partition_tree(c.oid) AS part
                    JOIN pg_class AS leaf ON leaf.oid = part.relid) END AS kept_apart,
       -- What a foreign table declares is not enforced, and what an inheritance parent
       -- enforces does not cover its children.
       c.relkind IN ('r', 'p', 'm')
         AND NOT (c.relkind = 'r' AND c.relhassubclass)
         AND NOT (c.relkind = 'p' AND EXISTS (
               SELECT FROM pg_partition_tree(c.oid) AS part
                 JOIN pg_class AS leaf ON leaf.oid = part.relid
                WHERE leaf.relkind = 'f')) AS enforced
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND n.nspname = ANY ($1::varchar[]::text[])
   AND NOT c.relispartition
   AND has_schema_privilege(n.oid, 'USAGE')
   AND (has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT'))
   AND NOT EXISTS (SELECT FROM pg_depend AS d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                      AND d.deptype = 'e')
 ORDER BY n.nspname, c.relname
"""

COLUMNS: Final = """
WITH RECURSIVE resolved AS (
    SELECT a.attrelid, a.attnum, a.atttypid AS type, a.atttypmod AS modifier
      FROM pg_attribute AS a
     WHERE a.attrelid = ANY ($1::int8[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.attrelid, r.attnum, t.typbasetype, t.typtypmod
      FROM resolved AS r JOIN pg_type AS t ON t.oid = r.type
     WHERE t.typtype = 'd')
SELECT a.attrelid::int8 AS relation, a.attnum::int4 AS number, a.attname::text AS name,
       format_type(r.type, r.modifier) AS type,
       t.typtype IN ('b', 'r', 'm') AND n.nspname = 'pg_catalog'
         AND (t.typcategory <> 'A' OR (element.typtype = 'b'
              AND element_schema.nspname = 'pg_catalog')) AS plain,
       t.typtype = 'e' OR EXISTS (
           SELECT FROM pg_type AS citext JOIN pg_depend AS d ON d.objid = citext.oid
             JOIN pg_extension AS x ON x.oid = d.refobjid
            WHERE citext.oid = r.type AND d.deptype = 'e' AND x.extname = 'citext'
              AND citext.typname = 'citext') AS compares_as_text,
       coalesce(l.collisdeterministic, true) AS deterministic,
       coalesce(l.collname IN ('C', 'POSIX', 'ucs_basic', 'pg_c_utf8'), false) AS bytewise,
       coalesce(l.oid = 'pg_catalog."default"'::regcollation, true) AS default_collation,
       a.attnotnull AND NOT EXISTS (
           SELECT FROM pg_constraint AS k
            WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND a.attnum = ANY (k.conkey)
              AND NOT k.convalidated) AS not_null,
       col_description(a.attrelid, a.attnum) AS comment
  FROM resolved AS r
  JOIN pg_attribute AS a ON a.attrelid = r.attrelid AND a.attnum = r.attnum
  JOIN pg_type AS t ON t.oid = r.type AND t.typtype <> 'd'
  JOIN pg_namespace AS n ON n.oid = t.typnamespace
  LEFT JOIN pg_type AS element ON element.oid = t.typelem AND t.typcategory = 'A'
  LEFT JOIN pg_namespace AS element_schema ON element_schema.oid = element.typnamespace
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
 WHERE has_column_privilege(a.attrelid, a.attnum, 'SELECT')
 ORDER BY a.attrelid, a.attnum
"""

KEYS: Final = """
SELECT i.indrelid::int8 AS relation, i.indisprimary AS is_primary,
       (i.indkey::int2[])[0:i.indnkeyatts - 1]::int4[] AS columns
  FROM pg_index AS i
 WHERE i.indrelid = ANY ($1::int8[]::oid[])
   AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indisready AND i.indislive
   AND NOT i.indisexclusion AND i.indpred IS NULL AND i.indexprs IS NULL
   AND NOT EXISTS (SELECT FROM unnest(i.indclass::oid[]) AS class(oid)
                     JOIN pg_opclass AS o ON o.oid = class.oid
                     JOIN pg_namespace AS n ON n.oid = o.opcnamespace
                    WHERE n.nspname <> 'pg_catalog' AND NOT o.opcdefault)
 ORDER BY i.indrelid, i.indisprimary DESC, i.indexrelid
"""
"""Unique indexes that hold over all rows at every moment: not partial, deferrable or invalid."""


STATISTICS: Final = """
SELECT c.oid::int8 AS relation, s.attname::text AS name, s.null_frac::float8 AS nulls,
       CASE WHEN s.n_distinct >= 0 THEN s.n_distinct::float8
            ELSE -s.n_distinct::float8 * greatest(c.reltuples, 0) END AS distinct_values
  FROM pg_stats AS s
  JOIN pg_namespace AS n ON n.nspname = s.schemaname
  JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = s.tablename
 WHERE c.oid = ANY ($1::int8[]::oid[])
 ORDER BY s.inherited
"""
"""What ``ANALYZE`` counted; ``n_distinct`` below zero is a share of the rows. The view shows no
column that the reader may not read. What counts a parent and its children comes last."""


@dataclass(frozen=True, slots=True)
class Database:
    """What about the owner's database decides whether text means there what it means here."""

    encoding: str
    bytewise: bool
    """The default collation orders text by its bytes."""
    functions: frozenset[str] = frozenset()
    """Those of the adapter's list that this version of PostgreSQL has."""
    version: int = 0
    """The major version of the server."""

    @property
    def unicode(self) -> bool:
        """Characters are the hub's characters."""
        return self.encoding == UTF8


DATABASE: Final = """
SELECT pg_encoding_to_char(encoding)::text AS encoding,
       (to_jsonb(d) ->> 'datlocprovider') AS provider,
       datcollate::text AS libc_locale,
       coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale') AS locale,
       ARRAY(SELECT DISTINCT proname::text FROM pg_proc
              WHERE pronamespace = 'pg_catalog'::regnamespace
                AND proname = ANY ($1::varchar[]::text[])) AS functions,
       current_setting('server_version_num')::int4 / 10000 AS version
  FROM pg_database AS d WHERE datname = current_database()
"""
"""``to_jsonb`` because the columns' names differ between PostgreSQL 14, 15 and 17."""


def database(row: Mapping[str, Any]) -> Database:
    """Read the one row of :data:`DATABASE`."""
    provider = row["provider"] or "c"
    name = row["libc_locale"] if provider == "c" else row["locale"] or ""
    plain = name.upper().replace("-", "") in {"C", "POSIX", "C.UTF8", "PG_C_UTF8"}
    return Database(
        encoding=row["encoding"],
        bytewise=provider in ("b", "c") and plain,
        functions=frozenset(row["functions"]),
        version=row["version"],
    )


@dataclass(frozen=True, slots=True)
class Discovery:
    """A published schema, and which of its columns mean something else inside the owner.

    ``unlike`` names, a table's source name each, the columns whose comparison or order at the
    owner is not the hub's on the published type: whole statements must not touch them. ``wide`` are
    tables whose rows may be so large that few of them fill the memory.
    """

    schema: OwnerSchema
    unlike: Mapping[tuple[str, str], frozenset[str]]
    wide: frozenset[tuple[str, str]]


def wanted(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a table's name is on the owner's list; an empty list has every name."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def discover(
    relations: Sequence[Mapping[str, Any]],
    columns: Iterable[Mapping[str, Any]],
    keys: Iterable[Mapping[str, Any]],
    statistics: Iterable[Mapping[str, Any]],
    owner: Database,
) -> Discovery:
    """Turn catalog rows into the published schema.

    Tables of two of the owner's schemas may bear one name: whoever publishes them leaves them out.
    """
    columns_of, keys_of = defaultdict(list), defaultdict(list)
    for row in columns:
        columns_of[row["relation"]].append(row)
    for row in keys:
        keys_of[row["relation"]].append(row)
    known = {(row["relation"], row["name"]): row for row in statistics}
    tables: list[Table] = []
    unlike: dict[tuple[str, str], frozenset[str]] = {}
    for relation in relations:
        rows = columns_of[relation["oid"]]
        if not rows:
            continue
        table = _table(relation, rows, keys_of[relation["oid"]], owner)
        counted = (
            _counted(column, known.get((relation["oid"], column.source_name)))
            for column in table.columns
        )
        tables.append(replace(table, columns=tuple(counted)))
        unlike[(relation["schema"], relation["name"])] = frozenset(
            row["name"] for row in rows if not _alike(row, owner)
        )
    wide = frozenset((row["schema"], row["name"]) for row in relations if _is_wide(row))
    return Discovery(OwnerSchema(tuple(tables)), unlike, wide)


def _is_wide(relation: Mapping[str, Any]) -> bool:
    """Tell whether a table keeps much of its rows apart (`TOAST`).

    Of views and foreign tables that is not known, so they may.
    """
    if relation["kind"] in ("v", "f"):
        return True
    rows = max(relation["rows"] or 0.0, DEFAULT_ROWS)
    return (relation["kept_apart"] or 0) > WIDE_BYTES * rows


def _table(
    relation: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
    owner: Database,
) -> Table:
    columns = {row["number"]: _column(row, relation["enforced"], owner) for row in rows}
    primary: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = []
    for key in keys if relation["enforced"] else ():
        named = [columns.get(number) for number in key["columns"]]
        parts = tuple(
            column.name
            for column in named
            if column is not None and column.equality is not Agreement.NONE
        )
        if len(parts) != len(named):
            continue
        if key["is_primary"]:
            primary = parts
        else:
            unique.append(parts)
    rows_known = relation["rows"]
    return Table(
        name=relation["name"],
        columns=tuple(columns.values()),
        source_name=relation["name"],
        source_schema=relation["schema"],
        primary_key=primary,
        unique_keys=tuple(unique),
        row_estimate=rows_known if rows_known and rows_known > 0 else DEFAULT_ROWS,
        comment=relation["comment"],
    )


def _counted(column: Column, known: Mapping[str, Any] | None) -> Column:
    """Add what the owner's statistics say; no value that occurs counts as nothing known."""
    if known is None:
        return column
    return replace(column, distinct=known["distinct_values"] or None, null_fraction=known["nulls"])


def _column(row: Mapping[str, Any], enforced: bool, owner: Database) -> Column:
    as_it_is = row["plain"] and publishable(row["type"])
    type_ = row["type"] if as_it_is else "text"
    return Column(
        name=row["name"],
        type=type_,
        source_name=row["name"],
        not_null=enforced and row["not_null"],
        comment=row["comment"],
        equality=_equality(row, type_, as_it_is),
        ordered=_ordered(row, type_, as_it_is, owner),
    )


def _equality(row: Mapping[str, Any], type_: str, as_it_is: bool) -> Agreement:
    plain = plain_type(type_)
    if not as_it_is:
        # Cast to text the labels of an enumeration, and citext, compare by their characters.
        return Agreement.EXACT if row["compares_as_text"] else Agreement.NONE
    if plain in TEXTS and not row["deterministic"]:
        return Agreement.SUPERSET
    known = plain in BINARY_TYPES or plain in EQUALITY_IN_TEXT_FORMAT
    return Agreement.EXACT if known else Agreement.NONE


def _ordered(row: Mapping[str, Any], type_: str, as_it_is: bool, owner: Database) -> bool:
    plain = plain_type(type_)
    if plain in TEXTS:
        # Ranges are sent with COLLATE "C", which orders by the bytes of the owner's encoding.
        return owner.unicode and (as_it_is or row["compares_as_text"])
    return plain in BINARY_TYPES or plain in (EQUALITY_IN_TEXT_FORMAT - {"jsonb"})


def _alike(row: Mapping[str, Any], owner: Database) -> bool:
    """Tell whether whole statements may use a column: the owner's type is the published one."""
    if not (row["plain"] and publishable(row["type"])):
        return False
    if plain_type(row["type"]) not in TEXTS or row["bytewise"]:
        return True
    if not row["deterministic"]:
        return False
    # Another order than the database's would contradict what `text_order` says for all columns.
    return row["default_collation"] or not owner.bytewise
