"""The project's own commands: set-up, lock files, make."""

from __future__ import annotations

import os
import runpy
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCK = runpy.run_path(str(ROOT / "scripts" / "check_lock.py"))


def test_the_locks_fit_the_project():
    assert LOCK["main"]() == 0


@pytest.mark.parametrize(
    ("wanted", "lock", "fault"),
    [
        ("a>=1", "a==1.5 \\\n    --hash=sha256:00\n", None),
        ("A.b", "a-b==1 \\\n    --hash=sha256:00\n", None),
        ("a>=2", "a==1.5 \\\n    --hash=sha256:00\n", "a: lock has 1.5, wanted >=2"),
        ("b", "a==1.5 \\\n    --hash=sha256:00\n", "b: not in lock"),
        ("a", "a==1.5\n", "a: no hash in lock"),
        (
            "a",
            "--index-url https://example.org\na==1 \\\n    --hash=sha256:00\n",
            "lock: names an address; packages come from whatever index pip has",
        ),
    ],
)
def test_faults_of_a_lock(tmp_path, wanted: str, lock: str, fault: str | None):
    path = tmp_path / "lock"
    path.write_text(lock)
    requirement = LOCK["Requirement"](wanted)
    assert LOCK["faults"]([requirement], path) == ([fault] if fault else [])


def test_a_part_that_differs_from_the_whole(tmp_path):
    (tmp_path / "whole").write_text("a==1\nb==2\n")
    (tmp_path / "part").write_text("a==1.1\nb==2\n")
    found = LOCK["differences"](tmp_path / "part", tmp_path / "whole")
    assert found == [f"a: {tmp_path / 'part'} has 1.1, whole has not"]


def test_make_help_lists_what_there_is():
    done = subprocess.run(
        ["make", "-C", ROOT, "--no-print-directory"],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert {"setup", "demo", "check", "test", "bench", "help"} <= set(listed)


@pytest.fixture
def setup(tmp_path):
    """Run a copy of scripts/setup where ``python3`` is the shell script given."""
    (tmp_path / "project" / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "project" / "scripts")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "rm"):
        (tools / tool).symlink_to(shutil.which(tool))

    def run(python: str | None) -> list[str]:
        if python is not None:
            script = tools / "python3"
            script.write_text(f"#!{shutil.which('sh')}\n{python}\n")
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        done = subprocess.run(
            [tmp_path / "project" / "scripts" / "setup"],
            capture_output=True,
            encoding="utf-8",
            check=False,
            env={"PATH": str(tools)},
        )
        assert done.returncode == 1
        return done.stderr.splitlines()

    return run


@pytest.mark.parametrize("python", [None, "exit 1"], ids=["none", "too old"])
def test_setup_without_a_recent_python(setup, python):
    first, second = setup(python)
    assert first == "setup: no Python 3.11 or later found"
    assert second.startswith("hint: ")


def test_setup_without_ensurepip(setup):
    real = sys.executable
    python = f'case "$2" in *ensurepip*) exit 1;; *) exec {real} "$@";; esac'
    first, second = setup(python)
    assert "its ensurepip or venv module is missing" in first
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert second == f"hint: on Debian and Ubuntu: apt-get install python{version}-venv"


def test_the_lock_script_is_clean_of_this_machine():
    for name in ("requirements.lock", "docker/requirements.lock"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "/" not in "".join(
            line for line in text.splitlines() if not line.lstrip().startswith(("#", "--hash"))
        )


LEFT_OUT = """
import pytest

def test_runs(): pass

def test_skips(): pytest.skip("no such server")

@pytest.mark.skip(reason="about what root does")
def test_may_skip(): pass

@pytest.fixture
def server(): pytest.skip("no such program")

def test_asks_for_what_is_not_there(server): pass

@pytest.mark.parametrize("nothing", [])
def test_of_nothing(nothing): pass

@pytest.mark.xfail(reason="a known fault")
def test_fails(): assert False

@pytest.mark.xfail(reason="a fault that is mended")
def test_fails_no_longer(): pass
"""


@pytest.fixture
def left_out(tmp_path):
    """Run tests that run, skip and fail below the project's own conftest."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib -ra\n"
        f"pythonpath = {ROOT / 'tests' / 'support'}\n"
    )
    (tmp_path / "test_some.py").write_text(LEFT_OUT)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('nosuch')\n")

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_run_may_leave_tests_out(left_out):
    status, said = left_out()
    assert status == 0, said
    assert "1 passed, 5 skipped, 1 xfailed, 1 xpassed" in said


def test_where_nothing_may_be_skipped_each_test_left_out_fails(left_out):
    status, said = left_out("--no-skips", "--ignore=test_module.py")
    assert status == 1, said
    assert "3 failed, 1 passed, 1 skipped, 2 errors" in said
    for why in (
        "skipped: no such server",
        "skipped: no such program",
        "skipped: got empty parameter set",
        "expected to fail: a known fault",
        "expected to fail: a fault that is mended",
    ):
        assert f"--no-skips: {why}" in said


def test_where_nothing_may_be_skipped_a_module_left_out_fails(left_out):
    status, said = left_out("--no-skips", "test_module.py")
    assert status == 2, said
    assert "--no-skips: skipped: could not import 'nosuch'" in said


def test_where_nothing_may_be_skipped_none_is_deselected(left_out):
    status, said = left_out("--no-skips", "-k", "test_runs", "test_some.py")
    assert status == 4, said
    assert "--no-skips: 6 tests are deselected" in said


def test_ci_lets_nothing_be_skipped():
    assert "make --no-print-directory test ARGS=--no-skips" in (ROOT / ".ci" / "run").read_text()
