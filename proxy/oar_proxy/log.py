"""Set-up of the log: structlog to standard error, for a console or as JSON lines.

What goes in is decided where it is logged: one canonical line a statement, and never a question's
text, a row, a key or a credential above debug.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import traceback
from typing import Final, Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Stderr(io.StringIO):
    """Standard error as it is when a line is written.

    A line that cannot be written (a closed pipe, a full disk) is lost: what it would have told
    about, a statement or its failure, must not fail for it.
    """

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(level: Level, output: Format) -> None:
    """Set up structlog, and the standard library's logging that the dependencies use.

    Dependencies get a say from warning upwards only: at info some of them log what passes
    through, rows and prompts included. At debug everything is shown.
    """
    threshold = _LEVELS[level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if output == "json":
        finish: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    else:
        finish = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    structlog.configure(
        processors=[*shared, *finish],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=_Stderr()),
    )
    handler = logging.StreamHandler(_Stderr())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(threshold if level == "debug" else max(threshold, logging.WARNING))


def raised_at(error: BaseException) -> list[str]:
    """Return the places an unexpected exception passed: its message may quote a row."""
    return [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
