"""Every error a client can meet, each with PostgreSQL's own SQLSTATE.

The message says what failed, on one line in lower case; the detail says whose limit or rule; the
hint says what to do. None of them carries a row, a hidden name or a credential.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence


class OarError(Exception):
    """An error on its way to a client. ``sqlstate`` is kept on the class."""

    sqlstate: str = "XX000"
    routine: str | None = None
    """The function of PostgreSQL that raises it, where drivers look for that."""

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.position = position


class InternalError(OarError):
    """A fault of the proxy itself."""

    sqlstate = "XX000"


class ProtocolViolation(OarError):
    """The client's bytes break the protocol."""

    sqlstate = "08P01"


class InvalidAuthorization(OarError):
    """The client's authentication is not for this connection."""

    sqlstate = "28000"


class TooManyConnections(OarError):
    """No place for another client."""

    sqlstate = "53300"


class FeatureNotSupported(OarError):
    """A statement form that has no meaning across owners, or is not supported yet."""

    sqlstate = "0A000"


class ResultTypeChanged(FeatureNotSupported):
    """What was prepared would answer with other columns now: drivers prepare it again."""

    routine = "RevalidateCachedQuery"

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(
            "cached plan must not change result type",
            detail=detail,
            hint="prepare the statement again",
        )


class ConstantsChanged(FeatureNotSupported):
    """A constant of what was prepared would mean something else: drivers prepare it again."""

    routine = ResultTypeChanged.routine

    def __init__(self, settings: Mapping[str, str]) -> None:
        """``settings`` are those that have changed, with the values it was prepared under."""
        was = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
        super().__init__(
            "a constant of the prepared statement would mean something else now",
            detail=f"it was prepared under {was}",
            hint="prepare the statement again",
        )


class NoActiveTransaction(OarError):
    """A statement that means nothing outside a transaction."""

    sqlstate = "25P01"


class InvalidSettingName(OarError):
    """A setting is set that the proxy does not have, as PostgreSQL says of a reserved prefix."""

    sqlstate = "42602"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        close = difflib.get_close_matches(name, known, n=1) or known
        super().__init__(
            f'invalid configuration parameter name "{name}"',
            detail='"oar" is a reserved prefix',
            hint=f"there is {', '.join(close)}",
        )


class UndefinedParameter(OarError):
    """A parameter where no value can be given: in a query string, outside a prepared statement."""

    sqlstate = "42P02"

    def __init__(self, number: int, position: int | None = None) -> None:
        super().__init__(f"there is no parameter ${number}", position=position)


class InsufficientPrivilege(OarError):
    """A policy denies it."""

    sqlstate = "42501"


class ReadOnly(OarError):
    """A write to an owner's table."""

    sqlstate = "25006"


class QueryCanceled(OarError):
    """Cancelled by the client, or out of time."""

    sqlstate = "57014"


class HubConnectionLost(OarError):
    """The hub closed the session's connection without saying why."""

    sqlstate = "08006"


class ShuttingDown(OarError):
    """The proxy is stopping."""

    sqlstate = "57P01"

    def __init__(self) -> None:
        super().__init__("terminating connection due to administrator command")


class InvalidSetting(OarError):
    """An ``oar.…`` setting has a value that means nothing."""

    sqlstate = "22023"


class InvalidTextRepresentation(OarError):
    """A question carries a value that is not of its parameter's type."""

    sqlstate = "22P02"


class WrongParameters(OarError):
    """EXECUTE gives a prepared statement more or fewer values than it takes."""

    sqlstate = "42601"


class LimitExceeded(OarError):
    """A limit of an owner or of the proxy was reached; nothing partial is returned."""

    sqlstate = "54000"


class BudgetExceeded(OarError):
    """An application has used up what the administrator lets it ask in an hour.

    Not 54000, which says that the statement itself is too large: this one is answered later.
    """

    sqlstate = "53400"


def refusal_of(error: BaseException) -> str | None:
    """Say whose rule or limit refused a statement, if one did."""
    refusals = (InsufficientPrivilege, LimitExceeded, BudgetExceeded)
    return error.detail if isinstance(error, refusals) else None


def sqlstate_of(error: BaseException) -> str:
    """Say how a statement ended that an exception ended; what is no error is a cancellation."""
    if isinstance(error, OarError):
        return error.sqlstate
    ended = InternalError if isinstance(error, Exception) else QueryCanceled
    return ended.sqlstate


class OutOfMemory(OarError):
    """The statements under way leave no memory for another's rows; nothing partial is returned."""

    sqlstate = "53200"


class OwnerFault(OarError):
    """An owner's database failed, or sent what it should not."""

    sqlstate = "HV000"


class OwnerDataException(OarError):
    """An owner's database met a value its query cannot compute with, such as a division by zero.

    Or a subquery in it gave more rows than one, PostgreSQL has no such part of a time, or a view
    made a value of a domain that does not allow it. ``sqlstate`` is the owner's own, of class 22,
    21, 0A or 23: what the statement would meet anywhere.
    """

    sqlstate = "22000"

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class OwnerUnreachable(OarError):
    """No connection to an owner."""

    sqlstate = "HV00N"


class OwnerWrongValue(OarError):
    """An owner sent a value that is not of the type it published."""

    sqlstate = "HV004"


class OwnerSchemaChanged(OarError):
    """A published table or column is no longer what the catalog says."""

    sqlstate = "HV00R"


class SnapshotTooOld(OarError):
    """The moment that a transaction reads is not to be had any more at some owner."""

    sqlstate = "72000"


class ObjectInUse(OarError):
    """An owner's snapshot gives rows to another statement of the transaction."""

    sqlstate = "55006"


class LedgerUnavailable(OarError):
    """The ledger could not be written, so nothing was disclosed."""

    sqlstate = "58030"


class Unanswerable(OarError):
    """The question cannot be answered from what is published."""

    sqlstate = "OA001"


class NoValidDraft(OarError):
    """The drafter's SQL did not fit the catalog, even after repairs."""

    sqlstate = "OA003"


class RunStopped(OarError):
    """The protocol that was to answer a question ended without an answer."""

    sqlstate = "OA005"


class VerifiedAnswerOutdated(OarError):
    """The reviewed answer of a question does not fit what is published any more."""

    sqlstate = "OA006"


class DrafterUnavailable(OarError):
    """The model could not be reached."""

    sqlstate = "OA004"
