"""What an owner's adapter publishes, what it can evaluate, and how it is asked.

The shape follows SQL/MED foreign-data wrappers: an adapter publishes a schema and never rows,
says which predicates it evaluates with PostgreSQL's meaning, and runs one authorised query at a
time inside a read-only snapshot.

Values travel as *cells*: ``None`` for NULL, otherwise the bytes PostgreSQL itself would put on
the wire, in the binary format for the types in :data:`BINARY_TYPES` and in the text format (UTF-8)
for every other type. Two adapters that publish the same type therefore produce the same bytes
for the same value (``numeric`` may differ in its display scale only), and nothing between an
owner and the hub has to decode a value.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, overload

if TYPE_CHECKING:
    from oar_adapters.authorized import Authorized

Cell = bytes | None

BINARY_TYPES: Final = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "numeric",
        "boolean",
        "text",
        "character varying",
        "character",
        "uuid",
        "date",
        "time without time zone",
        "timestamp without time zone",
        "timestamp with time zone",
        "bytea",
    }
)
"""Base types (``format_type`` names without modifiers) whose cells use PostgreSQL's binary format.

The binary format of these has been stable since PostgreSQL 8.4 and carries no OID of the sender.
"""


def base_type(type_name: str) -> str:
    """Return a ``format_type`` name without its modifier: ``numeric(10,2)`` → ``numeric``.

    ``timestamp(3) with time zone`` → ``timestamp with time zone``.
    """
    head, bracket, tail = type_name.partition("(")
    if not bracket:
        return type_name
    return (head + tail.partition(")")[2]).strip()


def is_binary(type_name: str) -> bool:
    """Tell whether cells of this type are in PostgreSQL's binary format (else text)."""
    return base_type(type_name) in BINARY_TYPES


class Agreement(enum.Enum):
    """How far an owner's ``column = constant`` agrees with PostgreSQL's on the published type."""

    EXACT = "exact"
    """The same rows."""
    SUPERSET = "superset"
    """At least the same rows (a case-insensitive or padded collation): fine for ``=`` and ``IN``,
    never under a negation (rules R44, R45)."""
    NONE = "none"
    """Unknown: nothing on this column is evaluated by the owner."""


@dataclass(frozen=True, slots=True)
class Column:
    """One published column.

    ``type`` is the hub's ``format_type`` name. ``source_name`` is the owner's own spelling.
    ``not_null`` only where the owner enforces it over all rows. ``ordered`` says that the
    owner's ``<`` can be made to agree with the hub's (numbers, dates; text compared by bytes).

    ``distinct`` is about how many different values it has besides NULL, and ``null_fraction`` the
    share of its rows that are NULL, 0 to 1: from the owner's statistics, None where they do not
    say. They order queries and decide no row. Values themselves, such as the most common ones or
    the bounds of a histogram, are rows and are never published.
    """

    name: str
    type: str
    source_name: str
    not_null: bool = False
    comment: str | None = None
    equality: Agreement = Agreement.NONE
    ordered: bool = False
    distinct: float | None = None
    null_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """A query over tables of one owner, in the place of a table.

    ``sql`` is as in a :class:`Statement`, ``tables`` those it reads, with the columns it may use.
    ``origins`` says of the outputs that are a table's column handed through which column (of a
    table in ``tables``, both as published): output, table, column. ``settled``: asked twice in one
    snapshot, it gives the same rows.
    """

    sql: str
    tables: tuple[Table, ...]
    origins: tuple[tuple[str, str, str], ...] = ()
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One published table or view. Keys name published columns; only enforced ones are listed.

    ``row_estimate`` is in rows, from the owner's statistics. ``derived`` set: a query stands for
    it, whose outputs are the columns, under the same names at the owner. ``only`` is never
    published, and set in a query where rows of tables that inherit from it are left out (``FROM
    ONLY``): adapters of databases that have no such tables need not look at it.
    """

    name: str
    columns: tuple[Column, ...]
    source_name: str
    source_schema: str | None = None
    primary_key: tuple[str, ...] = ()
    unique_keys: tuple[tuple[str, ...], ...] = ()
    row_estimate: float = 1000.0
    comment: str | None = None
    derived: Derived | None = None
    only: bool = False

    def column(self, name: str) -> Column:
        """Return the column of that published name. Raises ``KeyError`` when there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class OwnerSchema:
    """All an owner publishes at one moment."""

    tables: tuple[Table, ...]


# --- predicates -----------------------------------------------------------------------------


ComparisonOperator = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``column op value``; ``value`` in PostgreSQL's text format, of type ``type``."""

    column: str
    op: ComparisonOperator
    value: str
    type: str


@dataclass(frozen=True, slots=True)
class Membership:
    """``column IN (values)``; values in text format, none of them NULL."""

    column: str
    values: tuple[str, ...]
    type: str


@dataclass(frozen=True, slots=True)
class NullTest:
    """``column IS NULL``, or ``IS NOT NULL`` when ``negated``."""

    column: str
    negated: bool


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """``column LIKE pattern`` with backslash as the escape, ``NOT LIKE`` when ``negated``."""

    column: str
    pattern: str
    negated: bool


@dataclass(frozen=True, slots=True)
class And:
    """Conjunction."""

    arguments: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Disjunction."""

    arguments: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Negation, with SQL's three-valued meaning."""

    argument: Predicate


Predicate = Comparison | Membership | NullTest | PatternMatch | And | Or | Not


# --- queries --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """``column IN (keys)``: the semi-join pushed to an owner.

    ``keys`` are distinct, non-NULL cells of type ``type``, in the format ``is_binary(type)``
    names. An adapter compares them by value in that type, however many there are (one array, a
    temporary table, or chunks under the same snapshot: rule R34).

    ``also`` are further columns, each with as many keys: those at one place belong together, and a
    row has to match in all columns at once, ``(column, …) IN ((key, …), …)`` (R13). Then no two
    places have the same keys in every column. See :attr:`Capabilities.composite_keys`.

    With ``hmac``, 32 bytes, the keys are not values but the HMAC-SHA-256 digests under it of their
    texts in UTF-8: the owner's database digests its own column and compares. See
    :attr:`Capabilities.digested_types`.
    """

    column: str
    type: str
    keys: tuple[bytes, ...] = field(repr=False)
    also: tuple[KeyFilter, ...] = ()
    hmac: bytes | None = field(default=None, repr=False)

    @property
    def columns(self) -> tuple[KeyFilter, ...]:
        """All columns that are looked up together."""
        return (self, *self.also)


@dataclass(frozen=True, slots=True)
class SemiJoin:
    """``column IN (SELECT source_column FROM source)``, evaluated inside the owner.

    ``source`` is a scan of the owner's own table, with conditions of its own; its columns and
    limit say nothing. Values that PostgreSQL takes for equal have to match; more may (P1), and a
    condition inside that cannot be written may be left out. ``also`` are further columns, each with
    the source's column that one row of the source has to match at the same time.
    """

    column: str
    source_column: str
    source: Scan
    also: tuple[tuple[str, str], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All columns, each with the source's column that it is compared with."""
        return ((self.column, self.source_column), *self.also)


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column that the first rows are told by, in PostgreSQL's order of its published type."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Output:
    """One column of a query's answer, in the hub's types."""

    name: str
    type: str


PartialFunction = Literal["sum", "min", "max"]


@dataclass(frozen=True, slots=True)
class Partial:
    """What a counted scan tells of one column: how many values are not NULL, and ``functions``.

    Each as PostgreSQL's aggregate of that name over the published type has it (text compares by
    its bytes, sums are exact), NULL where no value is not NULL.
    """

    column: Column
    functions: frozenset[PartialFunction] = frozenset()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What it adds to a row: the count, then the sum, the minimum and the maximum asked for."""
        name, type_ = self.column.name, self.column.type
        types = {"sum": "numeric", "min": type_, "max": type_}
        asked = [Output(f"{f}({name})", types[f]) for f in types if f in self.functions]
        return (Output(f"count({name})", "bigint"), *asked)


@dataclass(frozen=True, slots=True)
class Scan:
    """Rows of one table: these columns, where all predicates, key filters and semi-joins hold.

    ``columns`` may be empty: then only the number of rows matters. ``limit`` is a number of rows
    past which the adapter may stop (the cap plus one: whoever asks treats reaching it as a
    failure, never as an answer). ``distinct``: each combination of values is needed once only, as
    PostgreSQL tells values apart; an adapter may send it more often. ``order``: of more rows than
    ``limit`` it has to be the first; they may come in any order.

    ``counted``: instead of rows, groups of them, a row for each combination of the values of
    ``columns``, with the number of its rows and what ``partials`` ask of it. Combinations that any
    expression of PostgreSQL's could tell apart are different ones (``1.0`` and ``1.00``, ``a`` and
    ``A``); an adapter may send one in several rows. ``limit`` counts what is sent.

    ``expected`` is how many rows whoever asks foresees, by what the owner published; None: unknown.
    """

    table: Table
    columns: tuple[Column, ...]
    predicates: tuple[Predicate, ...] = ()
    key_filters: tuple[KeyFilter, ...] = ()
    limit: int | None = None
    distinct: bool = False
    semi_joins: tuple[SemiJoin, ...] = ()
    order: tuple[SortKey, ...] = ()
    counted: bool = False
    partials: tuple[Partial, ...] = ()
    expected: float | None = None

    def parts(self) -> Iterator[Scan]:
        """Yield the scan itself and every scan inside its semi-joins, in the order of writing."""
        yield self
        for semi_join in self.semi_joins:
            yield from semi_join.source.parts()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The columns of its answer: of a counted one ``columns``, ``count(*)``, ``partials``."""
        columns = tuple(Output(column.name, column.type) for column in self.columns)
        if not self.counted:
            return columns
        told = (output for partial in self.partials for output in partial.outputs)
        return (*columns, Output("count(*)", "bigint"), *told)


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole SELECT the owner evaluates by itself.

    ``sql`` is PostgreSQL's dialect with the owner's own table and column names, quoted, and no
    parameters. ``outputs`` are the types the answer has to have. ``counted``: only the number of
    rows matters, as in a :class:`Scan` without columns.
    """

    sql: str
    tables: tuple[Table, ...]
    outputs: tuple[Output, ...]
    limit: int | None = None
    counted: bool = False


Query = Scan | Statement


class Packed(Sequence[Cell]):
    """Cells of one column as the elements of PostgreSQL's binary arrays: length, then bytes.

    A PostgreSQL owner can send a column so, and the hub takes it so: nothing has to touch a
    value on the way. ``nulls``: some cell may be NULL.
    """

    __slots__ = ("_count", "elements", "nulls")

    def __init__(self, elements: bytes, count: int, *, nulls: bool) -> None:
        self.elements = elements
        self._count = count
        self.nulls = nulls

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Packed:
        """Pack the cells of a column, unless they are."""
        if isinstance(cells, Packed):
            return cells
        lengths = _LENGTHS
        framed: list[bytes] = []
        append = framed.append
        for cell in cells:
            if cell is None:
                append(_NULL)
                continue
            size = len(cell)
            append(lengths[size] if size < 1024 else _LENGTH.pack(size))
            append(cell)
        return cls(b"".join(framed), len(cells), nulls=None in cells)

    @classmethod
    def of_array(cls, array: bytes | None) -> Packed:
        """Take the elements of a one-dimensional array in binary form; None has none."""
        if array is None:
            return cls(b"", 0, nulls=False)
        dimensions, flags, _, count, _ = _ARRAY_HEADER.unpack_from(array)
        if dimensions != 1:
            raise ValueError("not a one-dimensional array")
        return cls(array[_ARRAY_HEADER.size :], count, nulls=bool(flags))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Cell]:
        width = self._width()
        if width is None:
            return self._each()
        return itertools.chain.from_iterable(struct.iter_unpack(f"4x{width}s", self.elements))

    def _width(self) -> int | None:
        """The bytes of each cell where all have as many, fewer than 256: numbers have."""
        length, count = self.elements[:4], self._count
        if not length or any(length[:3]) or len(self.elements) != count * (4 + length[3]):
            return None
        # Where the first ends begins the second, which is as long then, and so on.
        places = (self.elements[place :: 4 + length[3]] for place in range(4))
        alike = all(each == length[n : n + 1] * count for n, each in enumerate(places))
        return length[3] if alike else None

    def _each(self) -> Iterator[Cell]:
        elements, position = self.elements, 0
        while position < len(elements):
            (size,) = _LENGTH.unpack_from(elements, position)
            position += 4
            if size < 0:
                yield None
                continue
            yield elements[position : position + size]
            position += size

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Cell]: ...
    def __getitem__(self, index: int | slice) -> Cell | Sequence[Cell]:
        return list(self)[index]


_ARRAY_HEADER: Final = struct.Struct("!iiiii")
_LENGTH: Final = struct.Struct("!i")
_LENGTHS: Final = [_LENGTH.pack(n) for n in range(1024)]
_NULL: Final = _LENGTH.pack(-1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of an answer, column by column, in the order the query names its columns."""

    columns: Sequence[Sequence[Cell]] = field(repr=False)
    rows: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an adapter's whole-statement evaluation agrees with PostgreSQL on.

    ``statements`` is false where statements never go whole. ``functions`` and ``aggregates`` are
    PostgreSQL's names; ``text_order`` says that ORDER BY, min, max and ranges on text follow the
    order of UTF-8 bytes (the hub's ``C.UTF-8``). ``snapshots`` is how many it holds at once.
    ``interleaves``: a snapshot runs a query between two batches of another one. Another owner's
    large answers are begun twice when they pass through: it counts in between. ``first_rows``: it
    takes a scan's ``order``, by columns that are ``ordered``. ``semi_joins``: it
    writes the :class:`SemiJoin` of two columns that both take keys of one type and whose published
    types are one, but for the width of integers and the kind of text. ``composite_keys``: it
    compares several columns at once, in a :class:`KeyFilter` and in a :class:`SemiJoin`, each as it
    would alone. ``digested_types`` are those, without modifiers, whose columns it compares with
    digests, each value having one text only.
    """

    dialect: str
    statements: bool = False
    functions: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    text_order: bool = False
    snapshots: int = 4
    interleaves: bool = False
    semi_joins: bool = False
    first_rows: bool = False
    composite_keys: bool = False
    digested_types: frozenset[str] = frozenset()


class OwnerErrorKind(enum.Enum):
    """Why an owner gave no answer."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """The owner's database reported an error."""
    WRONG_VALUE = "wrong value"
    """The owner sent a value that is not of the published type."""
    SCHEMA_CHANGED = "schema changed"
    """A published table or column is no longer there, or has another type."""


class OwnerError(Exception):
    """An owner failed. ``sqlstate`` is the owner's, where it has one.

    The message never carries the owner's own error text: that can quote rows.
    """

    def __init__(self, kind: OwnerErrorKind, what: str, sqlstate: str | None = None) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.sqlstate = sqlstate


class Snapshot(Protocol):
    """One consistent read-only view of an owner's data; queries run one after another.

    See :attr:`Capabilities.interleaves` for the one exception. One that is left before its end is
    over when the next is run.
    """

    def run(self, query: Authorized) -> AsyncIterator[Batch]:
        """Stream the rows. Raises :class:`OwnerError`; cancelling the task cancels the query."""
        ...


class Adapter(Protocol):
    """One owner, reached through one technology."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can evaluate."""
        ...

    async def schema(self) -> OwnerSchema:
        """Read what the owner publishes now. Raises :class:`OwnerError`."""
        ...

    def supports(self, table: Table, predicate: Predicate) -> bool:
        """Tell whether the owner keeps at least the rows PostgreSQL would keep (principle P1)."""
        ...

    def supports_statement(self, statement: Statement) -> bool:
        """Tell whether the owner's answer to the whole statement equals PostgreSQL's."""
        ...

    def counts(self, query: Scan) -> bool:
        """Tell whether the owner answers a counted scan. Predicates and keys are not asked about.

        A value that is not of its published type has to fail the query as in any other scan.
        """
        ...

    def render(self, query: Query) -> str:
        """Return the SQL sent, in the owner's dialect; keys appear as a placeholder, not values."""
        ...

    def snapshot(self, timeout: float) -> AbstractAsyncContextManager[Snapshot]:
        """Open a snapshot that lives at most ``timeout`` seconds. Raises :class:`OwnerError`."""
        ...

    async def close(self) -> None:
        """Release every connection and thread."""
        ...


class AdapterFactory(Protocol):
    """What an ``oar.adapters`` entry point names. It must not contact the owner yet."""

    def __call__(self, url: str, options: Mapping[str, str]) -> Adapter:
        """Make the adapter of one owner. Raises ``ValueError`` for an unusable URL or option."""
        ...
