"""The embedded server: made, started, recovered after crashes, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.hub.access import join_hub
from oar_proxy.hub.address import HubError
from oar_proxy.hub.binaries import ServerBinaries, find_binaries
from oar_proxy.hub.server import EmbeddedServer, embedded_hub, running_hub
from oar_proxy.settings import HubSettings

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="about what root does")


@pytest.fixture
def place():
    """A directory the server's OS user can get to, also under root."""
    directory = Path(tempfile.mkdtemp(prefix="oar-server-tests-"))
    directory.chmod(0o711)
    yield directory
    stop_what_is_left(HubSettings(data_dir=directory / "hub"))
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def used_before():
    """A hub directory that tests hand on to each other, with no server over it."""
    directory = Path(tempfile.mkdtemp(prefix="oar-server-tests-"))
    directory.chmod(0o711)
    with started(HubSettings(data_dir=directory / "hub", database="postgres")):
        pass
    yield directory / "hub"
    shutil.rmtree(directory)


@pytest.fixture
def fresh(place):
    """Settings of a hub that is yet to be made."""
    return HubSettings(data_dir=place / "hub", database="postgres", max_connections=20)


@pytest.fixture
def settings(used_before):
    """Settings of a hub that was used before."""
    settings = HubSettings(data_dir=used_before, database="postgres", max_connections=20)
    yield settings
    stop_what_is_left(settings)


@contextlib.contextmanager
def started(settings):
    server = EmbeddedServer(settings)
    address = server.start()
    try:
        yield address
    finally:
        server.stop()


def stop_what_is_left(settings):
    """Stop a server that a failed test left over a directory: one that is started replaces it."""
    with contextlib.suppress(HubError):
        if running_hub(settings) is not None:
            with started(settings):
                pass


def query(address, statement):
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchone() if cursor.description else None


def postmaster_pid(settings):
    return int((settings.data_dir / "pgdata" / "postmaster.pid").read_text().split()[0])


def gone(pid):
    """Wait until a process has ended (or is a zombie nobody waits for)."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def leave_running(settings):
    """Start a server in another process and kill that process: a proxy that crashed."""
    program = """
        import signal, sys
        from pathlib import Path
        from oar_proxy.hub.server import EmbeddedServer
        from oar_proxy.settings import HubSettings
        EmbeddedServer(HubSettings(data_dir=Path(sys.argv[1]), database="postgres")).start()
        print("started", flush=True)
        signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), settings.data_dir], stdout=subprocess.PIPE
    ) as proxy:
        assert proxy.stdout.readline() == b"started\n"
        proxy.kill()


def test_what_was_committed_is_there_after_a_restart(settings):
    with started(settings) as address:
        query(address, "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 1 AS a")
        pid = postmaster_pid(settings)
    assert gone(pid)
    with started(settings) as address:
        assert query(address, "SELECT a FROM kept") == (1,)
        assert query(address, "SHOW max_connections") == ("20",)


def test_what_was_committed_is_there_after_the_server_was_killed(settings):
    server = EmbeddedServer(settings)
    query(server.start(), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 1 AS a")
    pid = postmaster_pid(settings)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert running_hub(settings) is None
    server.stop()
    with started(settings) as address:
        assert query(address, "SELECT a FROM kept") == (1,)


def test_a_server_left_by_a_killed_proxy_is_replaced(settings):
    leave_running(settings)
    pid = postmaster_pid(settings)
    query(running_hub(settings), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 1 AS a")
    with started(settings) as address:
        assert postmaster_pid(settings) != pid
        assert gone(pid)
        assert query(address, "SELECT a FROM kept") == (1,)
        assert query(address, "SHOW max_connections") == ("20",)


def test_a_pid_file_that_names_another_process_is_stale(settings):
    """Process numbers start again in a restarted container."""
    with started(settings):
        pid_file = settings.data_dir / "pgdata" / "postmaster.pid"
        owner = pid_file.stat()
        lines = pid_file.read_text().splitlines()
    with subprocess.Popen(["sleep", "60"], user=owner.st_uid) as other:
        pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        os.chown(pid_file, owner.st_uid, owner.st_gid)
        try:
            assert running_hub(settings) is None
            with started(settings) as address:
                assert query(address, "SELECT 1") == (1,)
            assert other.poll() is None
        finally:
            other.kill()


def test_an_interrupted_creation_is_begun_anew(fresh):
    half = fresh.data_dir / "pgdata.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with started(fresh) as address:
        assert query(address, "SELECT 1") == (1,)
    assert not half.exists()


def test_a_second_proxy_over_the_same_directory_is_refused(settings):
    with started(settings) as address:
        with pytest.raises(HubError, match=f"in use by another oar .process {os.getpid()}"):
            EmbeddedServer(settings).start()
        assert query(address, "SELECT 1") == (1,)
    with started(settings):
        pass


def test_a_command_beside_a_running_proxy_joins_its_hub(settings):
    async def joined():
        async with join_hub(settings) as address:
            return address

    with started(settings) as address:
        assert asyncio.run(joined()) == address
        assert running_hub(settings) == address
        assert query(address, "SELECT 1") == (1,)
    assert running_hub(settings) is None


def test_files_of_another_version_are_refused(settings):
    version = settings.data_dir / "pgdata" / "PG_VERSION"
    kept = version.with_name("kept")
    version.rename(kept)
    try:
        version.write_text("99\n")
        with pytest.raises(HubError, match="files are of PostgreSQL 99, the server foun") as caught:
            EmbeddedServer(settings).start()
        assert "pg_upgrade" in caught.value.hint
        version.unlink()
        with pytest.raises(HubError, match="holds no PostgreSQL data"):
            EmbeddedServer(settings).start()
    finally:
        kept.rename(version)


def test_a_missing_password_is_said_so(settings):
    password = settings.data_dir / "admin-password"
    kept = password.rename(settings.data_dir / "kept")
    try:
        with pytest.raises(HubError, match="admin-password is missing"):
            EmbeddedServer(settings).start()
    finally:
        kept.rename(password)


def test_a_server_that_does_not_start_says_why_and_frees_the_directory(settings):
    configuration = settings.data_dir / "pgdata" / "postgresql.conf"
    kept = configuration.read_text()
    configuration.write_text(kept + "shared_buffers = 'nonsense'\n")
    with pytest.raises(HubError, match="pg_ctl failed: configuration file"):
        EmbeddedServer(settings).start()
    configuration.write_text(kept)
    with started(settings) as address:
        assert query(address, "SELECT 1") == (1,)


@pytest.mark.parametrize("name", ["spa ce, 'quo\"te", "$HOME;x", "d" * 120, "ü" * 50])
def test_any_directory_name_will_do(place, name):
    settings = HubSettings(data_dir=place / name / "hub", database="postgres")
    with started(settings) as address:
        assert query(address, "SELECT 1") == (1,)
        socket_directory = Path(address.host)
        assert socket_directory.stat().st_mode & 0o777 == 0o700
    beside = socket_directory.is_relative_to(place)
    assert beside == (len(name.encode()) < 80 and "," not in name)
    assert socket_directory.exists() == beside  # a private one goes with the server


def test_only_a_password_lets_anyone_in(fresh):
    with started(fresh) as address:
        for password in ("", "wrong"):
            conninfo = psycopg.conninfo.make_conninfo(address.conninfo, password=password)
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(conninfo)
        assert query(address, "SHOW listen_addresses") == ("",)
    secret = fresh.data_dir / "admin-password"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(secret.read_text().strip()) >= 32


def test_statements_and_values_stay_out_of_the_log(settings):
    with started(settings) as address:
        for statement in (
            "SELECT 'secret one' FROM nowhere",
            "SELECT 'secret two'::int",
            "DO $$ BEGIN RAISE EXCEPTION 'secret three'; END $$",
        ):
            with pytest.raises(psycopg.Error):
                query(address, statement)
        query(address, "DO $$ BEGIN RAISE WARNING 'secret four'; END $$")
    logs = "".join(path.read_text() for path in (settings.data_dir / "log").iterdir())
    assert "ready to accept connections" in logs
    assert "secret" not in logs


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_the_server_does_not_inherit_the_environment(settings, monkeypatch):
    monkeypatch.setenv("OAR_OWNERS__A__URL", "postgresql://u:secret@h/d")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    with started(settings):
        environment = Path(f"/proc/{postmaster_pid(settings)}/environ").read_bytes()
    assert b"secret" not in environment
    assert b"PGPORT" not in environment
    assert b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in environment.split(b"\0")


def test_what_is_committed_is_on_disk(settings):
    names = ("fsync", "synchronous_commit", "full_page_writes")
    with started(settings) as address:
        for name in names:
            assert query(address, f"SHOW {name}") == ("on",)


def test_a_start_that_is_cancelled_leaves_nothing_running(fresh):
    async def run():
        async with embedded_hub(fresh):
            pytest.fail("should not get here")

    async def cancelled():
        task = asyncio.create_task(run())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert running_hub(fresh) is None
    with started(fresh) as address:
        assert query(address, "SELECT 1") == (1,)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_server_that_ends_is_started_again_at_the_same_address(fresh, ending):
    def answers(address, before):
        with contextlib.suppress(psycopg.OperationalError, FileNotFoundError):
            return postmaster_pid(fresh) != before and query(address, "SELECT 1") == (1,)
        return False

    async def survive():
        async with embedded_hub(fresh) as address:
            for _ in range(2):
                first = postmaster_pid(fresh)
                os.kill(first, ending)
                async with asyncio.timeout(30):
                    while not await asyncio.to_thread(answers, address, first):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)

    asyncio.run(survive())
    assert running_hub(fresh) is None


def test_want_of_files_is_not_taken_for_the_end_of_the_server(fresh, monkeypatch):
    async def survive():
        monkeypatch.setattr("oar_proxy.hub.server._AGAIN_SECONDS", 0.1)
        async with embedded_hub(fresh):
            first = postmaster_pid(fresh)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                await asyncio.sleep(1.5)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert postmaster_pid(fresh) == first
            os.kill(first, signal.SIGINT)
            async with asyncio.timeout(30):
                while running_hub(fresh) is None or postmaster_pid(fresh) == first:  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(0.05)

    asyncio.run(survive())


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_another(settings, monkeypatch):
    read_text = Path.read_text

    def read(path, *options, **named):
        if path.name == "comm":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read_text(path, *options, **named)

    with started(settings):
        monkeypatch.setattr(Path, "read_text", read)
        with pytest.raises(OSError, match="Too many open files"):
            EmbeddedServer(settings).alive()
        monkeypatch.undo()
        assert EmbeddedServer(settings).alive()
    assert not EmbeddedServer(settings).alive()


def test_a_directory_that_cannot_be_made_is_refused(place):
    (place / "file").write_text("")
    with pytest.raises(HubError, match=r"hub directory .*file"):
        EmbeddedServer(HubSettings(data_dir=place / "file" / "hub")).start()


WITHOUT_BUILTIN_LOCALE = [
    directory
    for directory in sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if 15 <= int(directory.parent.name) < 17 and (directory / "initdb").exists()
]


@pytest.mark.parametrize("directory", WITHOUT_BUILTIN_LOCALE, ids=str)
def test_servers_without_the_builtin_locale_order_by_code_point_too(fresh, monkeypatch, directory):
    monkeypatch.setattr(
        "oar_proxy.hub.server.find_binaries",
        lambda major=None: ServerBinaries(directory, int(directory.parent.name)),
    )
    with started(fresh) as address:
        order = "SELECT array_agg(v ORDER BY v) FROM unnest(ARRAY['a', 'B', 'ä', '€', '𝄞']) AS v"
        assert query(address, order) == (["B", "a", "ä", "€", "𝄞"],)
        assert query(address, "SELECT upper('äя')") == ("ÄЯ",)


def test_binaries_are_found_where_they_are(monkeypatch, tmp_path):
    found = find_binaries()
    assert found.major >= 15
    assert find_binaries(found.major) == found
    monkeypatch.setattr("oar_proxy.hub.binaries._candidates", lambda: iter([tmp_path]))
    with pytest.raises(HubError, match="no PostgreSQL server programs") as caught:
        find_binaries()
    assert "hub.dsn" in caught.value.hint


@as_root
def test_root_hands_the_server_to_an_ordinary_user(settings):
    with started(settings):
        owner = Path(f"/proc/{postmaster_pid(settings)}").stat().st_uid
    assert owner != 0
    assert (settings.data_dir / "pgdata").stat().st_uid == owner
    assert (settings.data_dir / "lock").stat().st_uid == 0


@as_root
def test_root_is_told_which_directory_keeps_the_server_out(place):
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(HubError, match=f"may not enter {closed} to reach the hub's") as caught:
        EmbeddedServer(HubSettings(data_dir=closed / "hub")).start()
    assert f"chmod o+x {closed}" in caught.value.hint


@as_root
def test_programs_root_keeps_to_itself_are_copied(place, settings, monkeypatch):
    """An installation below /root, say."""
    site = place / "site-packages"
    (original,) = [b for b in [find_binaries()] if b.directory.parent.name == "pginstall"]
    package = original.directory.parent.parent
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, site / name, ignore=shutil.ignore_patterns("*.a"))
    site.chmod(0o700)
    hidden = site / package.name / "pginstall" / "bin"
    monkeypatch.setattr("oar_proxy.hub.binaries._candidates", lambda: iter([hidden]))
    for _ in range(2):
        with started(settings) as address:
            assert query(address, "SELECT count(*) FROM to_tsvector('english', 'it runs')") == (1,)
            running = Path(f"/proc/{postmaster_pid(settings)}/exe").readlink()
    programs = settings.data_dir / "programs"
    assert running.is_relative_to(programs)
    assert len(list(programs.iterdir())) == 1


@as_root
def test_an_ordinary_user_runs_its_own_server(place):
    """The same, from start to stop, without root's rights."""
    roots = HubSettings(data_dir=place / "roots", database="postgres")
    with started(roots):
        uid = (roots.data_dir / "pgdata").stat().st_uid
    home = place / "home"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)

    def work():
        with started(HubSettings(data_dir=home / "hub", database="postgres")) as address:
            (answer,) = query(address, "SELECT 'it runs'")
        with pytest.raises(HubError) as caught:
            EmbeddedServer(roots).start()
        return f"{answer}; {caught.value}"

    assert as_user(uid, work) == f"it runs; hub directory {roots.data_dir}: Permission denied"


def as_user(uid, work):
    """Run a function in a child that gave up root's rights; return the text it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            text = work()
        except BaseException as error:  # a child must not go on as the test run
            text = repr(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()
