"""The command line, run in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass

import pytest
from oar_proxy.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended: what it printed, and said beside that."""

    status: int
    printed: str
    said: str


def oar(directory, *arguments, **environment):
    """Run ``oar`` in a directory, with these variables set."""
    printed, said = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(directory),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
    ):
        patch.delenv("OAR_CONFIG", raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["oar", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return Ended(ended.value.code or 0, printed.getvalue(), said.getvalue())
