"""``oar audit``: what it finds of what is done to a ledger, in the hub and in a file."""

import asyncio
import itertools
import json
import os
import re
import secrets
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from commands import oar
from oar_proxy import ledger, writer
from oar_proxy.chain import Chain, Entry, canonical, linked
from oar_proxy.ledger import Ask, Disclosure, Ledger, StepEntry, StepOutcome, digest
from oar_proxy.ledgerfile import LedgerFile, LedgerFileError
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

OAR = Path(sys.executable).with_name("oar")
KINDS = ("open", "link", "ask", "step", "step_outcome", "ask_outcome", "close")


@pytest.fixture(scope="module")
def template(hub):
    """A database with a ledger of three proxies, two of which wrote at the same time."""

    async def prepare(conninfo):
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            await ledger.install(connection)
        async with Ledger(conninfo) as one, Ledger(conninfo) as two:
            for book in (one, two, one, two):
                await answer(book)
        async with Ledger(conninfo) as three:
            await answer(three)

    with hub.database() as conninfo:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "LINK_SECONDS", 0.0)
            asyncio.run(prepare(conninfo))
        yield conninfo_to_dict(conninfo)["dbname"]


async def answer(book: Ledger) -> Ask:
    """Write an ask with two steps, one of which carries keys."""
    ask = Ask(uuid.uuid4(), "анна", digest("SELECT 1"), "sql", "relay", 2, "v")
    told = Disclosure(
        *("marketing", 'marketing."Pro.mos".order_id', "logistics", "deliveries.order_id", 3),
        *("marketing/key_disclosure[0]", "none", book.keys_digest([b"b", b"a", b"c"])),
    )
    cap = (1000, "proxy/limits.max_rows")
    first = StepEntry("marketing", digest("a"), *cap, 0, "none", (), (cap[1],), ("Pro.mos",))
    second = StepEntry(
        "logistics", digest("b"), *cap, 3, "none", (told,), (cap[1],), ("deliveries",)
    )
    (number,) = await book.record(ask, [first])
    ended = StepOutcome(number, "00000", 3, 250)
    (other,) = await book.record(ask, [second], [ended])
    await book.finish_ask(ask, rows=None, finished=[StepOutcome(other, "00000", 2, 120)])
    return ask


class Copy:
    """A ledger of a test's own, to tamper with as an administrator could."""

    def __init__(self, conninfo: str, directory: Path) -> None:
        self.conninfo = conninfo
        self.directory = directory
        (directory / "oar.yaml").write_text("{}")

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run the command in this process; returns what it printed."""
        ended = oar(self.directory, "audit", *arguments, OAR_HUB__DSN=self.conninfo)
        assert ended.status == status, ended.said
        return ended.printed

    def verify(self, *arguments: str, sound: bool = True) -> dict:
        report = json.loads(
            self.run(
                *("verify", "--config", "oar.yaml", "--format", "json", *arguments),
                status=0 if sound else 1,
            )
        )
        assert report.get("sound", sound) is sound
        return report

    def tamper(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo) as connection:
            connection.execute("ALTER TABLE oar_internal.entries DISABLE TRIGGER ALL")
            for statement in statements:
                connection.execute(statement)
            connection.execute("ALTER TABLE oar_internal.entries ENABLE ALWAYS TRIGGER append_only")
            connection.execute("ALTER TABLE oar_internal.entries ENABLE ALWAYS TRIGGER kept")

    def entries(self) -> list[Entry]:
        """All entries in the order that the hub took them."""
        with psycopg.connect(self.conninfo) as connection:
            rows = connection.execute(
                "SELECT writer, number, body, hash FROM oar_internal.entries ORDER BY entry"
            ).fetchall()
        return [Entry(*row) for row in rows]

    def first(self, kind: str) -> Entry:
        return next(e for e in self.entries() if json.loads(e.body)["kind"] == kind)


@pytest.fixture
def book(hub, template, tmp_path):
    name = f"oar_{secrets.token_hex(4)}"
    hub.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield Copy(make_conninfo(hub.conninfo, dbname=name), tmp_path)
    hub.execute(f"DROP DATABASE {name} WITH (FORCE)")


def at(entry: Entry) -> str:
    return f"writer = '{entry.writer}' AND number = {entry.number}"


@pytest.mark.parametrize("what", [[], ["--openlineage"]])
def test_a_reader_that_has_gone_is_no_fault_to_speak_of(book, what):
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [Path(sys.executable).with_name("oar"), "audit", "export", "--config", "oar.yaml", *what],
        cwd=book.directory, env={"OAR_HUB__DSN": book.conninfo}, check=False,
        stdout=writes, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_ledger_as_it_was_written_is_sound(book):
    report = book.verify()
    assert (report["faults"], len(report["heads"])) == ([], 3)
    kinds = {json.loads(entry.body)["kind"] for entry in book.entries()}
    assert kinds == set(KINDS)
    text = book.run("verify", "--config", "oar.yaml")
    assert text == f"hub: {report['entries']} entries of 3 writers: sound\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["body", "removed", "rehashed", "column"])
def test_what_is_done_to_any_kind_of_entry_is_found(book, kind, how):
    entry = book.first(kind)
    body = json.loads(entry.body)
    place, found = entry.number, "changed"
    match how:
        case "body":
            changed = canonical({**body, "at": "2020-01-01T00:00:00.000000Z"})
            book.tamper(
                sql.SQL("UPDATE oar_internal.entries SET body = {} WHERE ").format(changed)
                .as_string() + at(entry)
            )  # fmt: skip
        case "removed":
            book.tamper(f"DELETE FROM oar_internal.entries WHERE {at(entry)}")
            found = "cut off" if kind == "close" else "removed"
            place += kind != "close"
        case (
            "rehashed"
        ):  # its own hash fits, that of the entry behind it or those that name it do not
            chain = [e for e in book.entries() if e.writer == entry.writer]
            before = chain[entry.number - 2].hash if entry.number > 1 else bytes(32)
            changed = canonical({**body, "extra": 1})
            book.tamper(
                sql.SQL("UPDATE oar_internal.entries SET body = {}, hash = {} WHERE ")
                .format(changed, linked(before, changed)).as_string() + at(entry)
            )  # fmt: skip
            found = "rewritten" if kind == "close" else "changed"
            place += kind != "close"
        case "column":
            column = "at = at + interval '1 s'"
            if kind in ("ask", "step", "step_outcome", "ask_outcome"):
                column = "ask = gen_random_uuid()"
            book.tamper(f"UPDATE oar_internal.entries SET {column} WHERE {at(entry)}")
    faults = book.verify(sound=False)["faults"]
    assert (str(entry.writer), place, found) in {
        (fault["writer"], fault["number"], fault["kind"]) for fault in faults
    }


def test_entries_that_change_places_are_found(book):
    step, other = [e for e in book.entries() if json.loads(e.body)["kind"] == "step"][:2]
    swap = sql.SQL("UPDATE oar_internal.entries SET body = {}, hash = {} WHERE ")
    book.tamper(
        swap.format(other.body, other.hash).as_string() + at(step),
        swap.format(step.body, step.hash).as_string() + at(other),
    )
    faults = book.verify(sound=False)["faults"]
    assert [f["number"] for f in faults if f["kind"] == "reordered"] == [step.number, other.number]


def test_a_cut_off_end_is_found_by_the_other_chains(book):
    close = book.first("close")
    book.tamper(f"DELETE FROM oar_internal.entries WHERE writer = '{close.writer}' AND number > 5")
    (fault,) = book.verify(sound=False)["faults"]
    assert (fault["kind"], fault["writer"], fault["number"]) == ("cut off", str(close.writer), 6)


def test_a_whole_chain_that_is_gone_is_found(book):
    book.tamper(f"DELETE FROM oar_internal.entries WHERE writer = '{book.first('ask').writer}'")
    assert "cut off" in {f["kind"] for f in book.verify(sound=False)["faults"]}


def test_a_chain_written_anew_is_found(book):
    """Whoever changes an entry and makes all hashes fit is given away by who named the chain."""
    step = book.first("step")
    chain = [entry for entry in book.entries() if entry.writer == step.writer]
    hash_ = bytes(32)
    changes = []
    for entry in chain:
        body = entry.body
        if entry.number == step.number:
            body = canonical({**json.loads(body), "keys": 1})
        hash_ = linked(hash_, body)
        changes.append(
            sql.SQL("UPDATE oar_internal.entries SET body = {}, hash = {} WHERE ")
            .format(body, hash_).as_string() + at(entry)
        )  # fmt: skip
    book.tamper(*changes)
    faults = book.verify(sound=False)["faults"]
    assert {fault["kind"] for fault in faults} == {"rewritten"}
    assert {fault["writer"] for fault in faults} == {str(step.writer)}


def test_an_entry_put_behind_the_last_one_of_a_chain_is_found(book):
    close = book.first("close")
    body = canonical({**json.loads(close.body), "kind": "step"})
    book.tamper(
        sql.SQL(
            "INSERT INTO oar_internal.entries (writer, number, at, kind, body, hash)"
            " VALUES ({}, {}, now(), 'step', {}, {})"
        ).format(close.writer, close.number + 1, body, linked(close.hash, body)).as_string()
    )  # fmt: skip
    faults = book.verify(sound=False)["faults"]
    assert ("reordered", close.number + 1) in {(f["kind"], f["number"]) for f in faults}


def test_the_very_last_entries_are_missed_by_whoever_kept_the_heads(book):
    heads = book.directory / "heads.json"
    heads.write_text(json.dumps(book.verify()))
    last = book.entries()[-1]
    book.tamper(f"DELETE FROM oar_internal.entries WHERE {at(last)}")
    book.verify()  # nothing else names it
    (fault,) = book.verify("--heads", "heads.json", sound=False)["faults"]
    assert (fault["kind"], fault["number"]) == ("cut off", last.number)
    assert "heads.json" in fault["text"]


def test_heads_are_printed_to_be_kept_and_held_against_later(book):
    kept = json.loads(book.run("heads", "--config", "oar.yaml"))
    assert kept["heads"] == book.verify()["heads"]
    lines = book.run("heads", "--config", "oar.yaml", "--format", "text").splitlines()
    assert [line.split()[0] for line in lines] == [head["writer"] for head in kept["heads"]]
    (book.directory / "heads.json").write_text(json.dumps(kept))

    async def write():
        async with Ledger(book.conninfo) as one:
            await answer(one)

    asyncio.run(write())
    # More has come, and what was there is there.
    book.verify("--heads", "heads.json")
    close = next(e for e in book.entries() if str(e.writer) == kept["heads"][0]["writer"])
    book.tamper(f"DELETE FROM oar_internal.entries WHERE writer = '{close.writer}'")
    faults = book.verify("--heads", "heads.json", sound=False)["faults"]
    assert any("heads.json" in fault["text"] for fault in faults)


def test_a_chain_that_nobody_closed_and_nobody_writes_is_said(book, hub):
    assert book.verify()["open"] == []
    last = book.entries()[-1]
    assert json.loads(last.body)["kind"] == "close"
    book.tamper(f"DELETE FROM oar_internal.entries WHERE {at(last)}")
    assert book.verify()["open"] == [str(last.writer)]
    told = f"writer {last.writer} ends with entry {last.number - 1}, which does not close its chain"
    assert told in book.run("verify", "--config", "oar.yaml")
    # Any client may take any name, and is no proxy for that.
    name = writer.connection_name(last.writer)
    dsn = make_conninfo(book.conninfo, user=hub.user(), password="x", application_name=name)
    with psycopg.connect(dsn):
        assert book.verify()["open"] == [str(last.writer)]

    async def while_it_runs():
        async with Ledger(book.conninfo) as one:
            await answer(one)
            return await asyncio.to_thread(book.verify)

    assert asyncio.run(while_it_runs())["open"] == [str(last.writer)]


# --- a file ---------------------------------------------------------------------------------------


@pytest.fixture
def copied(book):
    """A ledger file of two runs of a proxy, and the ledger it is of."""
    file = book.directory / "ledger.jsonl"

    async def write():
        for _ in range(2):
            async with Ledger(book.conninfo, file) as one:
                await answer(one)

    asyncio.run(write())
    return file


Lines = list[str]


def without(index: int) -> Callable[[Lines], Lines]:
    return lambda lines: lines[:index] + lines[index + 1 :]


def edited(index: int, old: str, new: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        assert old in lines[index]
        return [*lines[:index], lines[index].replace(old, new), *lines[index + 1 :]]

    return edit


@pytest.mark.parametrize(
    ("change", "kind", "number"),
    [
        (edited(2, '"keys":0', '"keys":1'), "changed", 3),
        (without(3), "removed", 5),
        (without(0), "removed", 2),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "reordered", 3),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], "reordered", 3),
        (lambda lines: lines[:7] + lines[8:], "cut off", 8),
        (lambda lines: lines[8:], "cut off", 1),
        (edited(1, '{"hash"', '{"mash"'), "changed", 2),
        (edited(2, '"keys":0', '"keys":1,"keys":0'), "changed", 3),
        (edited(2, '{"hash"', '{"note":1,"hash"'), "changed", 3),
    ],
    ids=["changed", "removed", "no first", "swapped", "twice", "no last", "no chain", "no entry",
         "said twice", "more said"],
)  # fmt: skip
def test_what_is_done_to_a_file_is_found_in_it_alone(book, copied, change, kind, number):
    lines = copied.read_text().splitlines(keepends=True)
    assert len(lines) == 16
    assert "16 entries of 2 writers: sound" in book.run("verify", str(copied))
    copied.write_text("".join(change(lines)))
    report = json.loads(book.run("verify", str(copied), "--format", "json", status=1))
    assert (kind, number) in {(f["kind"], f["number"]) for f in report["faults"]}


def test_a_file_and_the_hub_are_compared(book, copied):
    both = book.verify(str(copied))
    assert [report["sound"] for report in both.values()] == [True, True]
    last = book.entries()[-1]
    book.tamper(f"DELETE FROM oar_internal.entries WHERE {at(last)}")
    reports = json.loads(
        book.run(*("verify", str(copied), "--config", "oar.yaml", "--format", "json"), status=1)
    )
    assert reports[str(copied)]["sound"]
    assert [fault["kind"] for fault in reports["hub"]["faults"]] == ["cut off"]


def test_a_file_is_completed_after_a_crash(book, copied):
    whole = copied.read_text()
    for cut in (whole[:-200], whole[: whole.rfind("\n", 0, -1) + 1], whole.splitlines()[0] + "\n"):
        copied.write_text(cut)

        async def start():
            async with Ledger(book.conninfo, copied):
                pass

        asyncio.run(start())
        assert copied.read_text().startswith(whole)
        assert "sound" in book.run("verify", str(copied))
        whole = copied.read_text()


def test_an_entry_is_in_a_file_once_however_often_it_is_written(tmp_path):
    chain = Chain(uuid.uuid4())
    first, second, third = (chain.append("step", "2026-01-01T00:00:00+00:00", {}) for _ in range(3))
    file = LedgerFile(tmp_path / "ledger.jsonl")
    file.append([first, second])
    file.append([first, second, third])
    file.append([])
    file.close()
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert [Entry.of_line(line) for line in lines] == [first, second, third]


@pytest.mark.parametrize("content", ["listen: {port: 6432}", "a: 1\nb: 2", "\nsecret"])
def test_a_file_that_is_no_ledger_is_left_as_it_is(tmp_path, content):
    file = tmp_path / "oar.yaml"
    file.write_text(content)
    with pytest.raises(LedgerFileError, match="is not a ledger"):
        LedgerFile(file)
    assert file.read_text() == content


@pytest.mark.parametrize("begun", [b"", b'{"ha', b'{"hash":"00ab', b'{"h\0\0\0\0\0\0\0\0\0'])
def test_a_first_line_that_was_cut_short_is_taken_off(tmp_path, begun):
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(begun)
    opened = LedgerFile(file)
    opened.close()
    assert (opened.last, file.read_bytes()) == (None, b"")


def test_a_file_of_another_ledger_is_refused(book, copied, hub):
    lines = copied.read_text().splitlines()
    copied.write_text("\n".join([*lines, lines[-1].replace('"hash":"', '"hash":"00')]) + "\n")

    async def start():
        async with Ledger(book.conninfo, copied):
            pass

    with pytest.raises(ledger.LedgerUnavailable, match=r"not on the hub.s ledger"):
        asyncio.run(start())


def test_a_file_is_of_one_proxy(book, copied):
    async def start():
        async with Ledger(book.conninfo, copied), Ledger(book.conninfo, copied):
            pass

    with pytest.raises(ledger.LedgerUnavailable, match="written by another proxy"):
        asyncio.run(start())


def test_nothing_is_sent_whose_line_is_not_in_the_file(book, monkeypatch):
    file = book.directory / "full.jsonl"

    async def work():
        async with Ledger(book.conninfo, file) as one:
            await answer(one)

            def full(*_):
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patch:
                patch.setattr("oar_proxy.ledgerfile.LedgerFile.append", full)
                with pytest.raises(ledger.LedgerUnavailable):
                    await answer(one)
                before = len(book.entries())
                with pytest.raises(ledger.LedgerUnavailable):
                    await answer(one)
                assert len(book.entries()) == before
            await answer(one)

    asyncio.run(work())
    both = book.verify(str(file))
    assert [report["sound"] for report in both.values()] == [True, True]
    in_file = {Entry.of_line(line).head for line in file.read_text().splitlines()}
    (name,) = {head.writer for head in in_file}
    assert in_file == {entry.head for entry in book.entries() if entry.writer == name}


# --- reading --------------------------------------------------------------------------------------


def test_tail_prints_the_last_entries(book):
    text = book.run("tail", "--config", "oar.yaml", "--lines", "3").splitlines()
    assert [line.split()[1] for line in text] == ["step_outcome", "ask_outcome", "close"]
    printed = book.run("tail", "--config", "oar.yaml", "-n", "2", "--format", "json").splitlines()
    assert [Entry.of_line(line) for line in printed] == book.entries()[-2:]


def test_tail_follows(book):
    following = subprocess.Popen(
        [OAR, "audit", "tail", "--config", "oar.yaml", "--follow", "-n", "1", "--format", "json"],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=book.directory,
        env={**os.environ, "OAR_HUB__DSN": book.conninfo},
    )
    try:
        last = Entry.of_line(following.stdout.readline())
        assert last == book.entries()[-1]

        async def write():
            async with Ledger(book.conninfo) as one:
                return await answer(one)

        ask = asyncio.run(write())
        printed = [json.loads(following.stdout.readline())["body"] for _ in range(8)]
        assert [body["number"] for body in printed] == list(range(1, 9))
        assert {body.get("ask") for body in printed[1:7]} == {str(ask.id)}
    finally:
        following.terminate()
        following.wait(60)
        following.stdout.close()


def test_show_prints_what_is_on_the_ledger_of_an_ask(book):
    ask = json.loads(book.first("ask").body)["ask"]
    text = book.run("show", ask, "--config", "oar.yaml")
    assert "анна: sql, relay" in text
    assert '3 keys of marketing."Pro.mos".order_id for logistics\'s deliveries.order_id' in text
    bodies = json.loads(book.run("show", ask, "--config", "oar.yaml", "--format", "json"))
    kinds = [body["kind"] for body in bodies]
    assert kinds == ["ask", "step", "step_outcome", "step", "step_outcome", "ask_outcome"]
    missing = str(uuid.uuid4())
    assert book.run("show", missing, "--config", "oar.yaml", status=1) == ""


def test_an_export_can_be_verified(book):
    exported = book.directory / "all.jsonl"
    exported.write_text(book.run("export", "--config", "oar.yaml"))
    assert "of 3 writers: sound" in book.run("verify", str(exported))


def test_openlineage_events_have_what_the_standard_asks_for(book):
    lines = book.run("export", "--config", "oar.yaml", "--openlineage").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"] * 5
    for event in events:
        assert event["schemaURL"].startswith("https://openlineage.io/spec/2-0-2/OpenLineage.json#")
        assert event["producer"].startswith("urn:oar:")
        assert uuid.UUID(event["run"]["runId"])
        assert event["job"] == {"namespace": "oar", "name": f"sql/{digest('SELECT 1')}"}
        facets = [event["run"]["facets"]]
        for dataset in (*event["inputs"], *event["outputs"]):
            assert set(dataset) <= {"namespace", "name", "facets", "inputFacets", "outputFacets"}
            facets += (dataset.get(f, {}) for f in ("facets", "inputFacets", "outputFacets"))
        for facet in itertools.chain.from_iterable(each.values() for each in facets):
            assert {"_producer", "_schemaURL"} <= facet.keys()
    end = events[1]
    assert [(d["namespace"], d["name"]) for d in end["inputs"]] == [
        ("oar://marketing", "Pro.mos"),
        ("oar://logistics", "deliveries"),
    ]
    (keys,) = end["outputs"]
    assert keys["facets"]["columnLineage"]["fields"] == {
        "order_id": {
            "inputFields": [
                {"namespace": "oar://marketing", "name": "Pro.mos", "field": "order_id"}
            ]
        }
    }
    assert keys["outputFacets"]["outputStatistics"]["rowCount"] == 3
    (query,) = end["inputs"][1]["inputFacets"]["oar_queries"]["queries"]
    assert (query["rows"], query["microseconds"], query["keys"]) == (2, 120, 3)


# --- retention ------------------------------------------------------------------------------------


def backdate(book: Copy, until: int) -> None:
    """Make the ledger look as if its first entries were written in 2020, hashes and all."""
    hashes: dict = {}
    named: dict = {}
    changes = []
    for place, entry in enumerate(book.entries()):
        body = json.loads(entry.body)
        if place < until:
            body["at"] = f"2020{body['at'][4:]}"
        for head in body.get("heads", ()):
            head["hash"] = named[head["writer"], head["number"]]
        text = canonical(body)
        hashes[entry.writer] = linked(hashes.get(entry.writer, bytes(32)), text)
        named[str(entry.writer), entry.number] = hashes[entry.writer].hex()
        changes.append(
            sql.SQL("UPDATE oar_internal.entries SET body = {}, hash = {}, at = {} WHERE ")
            .format(text, hashes[entry.writer], body["at"]).as_string() + at(entry)
        )  # fmt: skip
    book.tamper(*changes)


@pytest.mark.parametrize("until", [9, 17, 33])
def test_what_is_left_of_a_pruned_ledger_can_be_verified(book, until):
    backdate(book, until)
    before = book.verify()["entries"]
    prune = ("prune", "--config", "oar.yaml", "--before", "2021-01-01", "--format", "json")
    counted = json.loads(book.run(*prune, "--dry-run"))
    assert (counted["deleted"], book.verify()["entries"]) == (False, before)
    pruned = json.loads(book.run(*prune))
    assert pruned == {**counted, "deleted": True}
    assert 0 < pruned["entries"] <= until
    # The chain that says so: its beginning, the checkpoint, its end.
    left = book.entries()
    assert len(left) == before - pruned["entries"] + 3
    assert book.verify()["faults"] == []
    # No ask lost a part of itself.
    asks = [json.loads(entry.body) for entry in left]
    opened = {body["ask"] for body in asks if body["kind"] == "ask"}
    assert {body["ask"] for body in asks if "ask" in body} == opened
    # What is left is held as before.
    (first, *_) = (e for e in left if json.loads(e.body)["kind"] == "step")
    book.tamper(f"DELETE FROM oar_internal.entries WHERE {at(first)}")
    book.verify(sound=False)


def test_pruning_twice_keeps_what_the_rest_needs(book):
    backdate(book, 17)
    prune = ("prune", "--config", "oar.yaml", "--before")
    book.run(*prune, "2021-01-01")
    book.run(*prune, "2021-01-01")
    assert book.verify()["faults"] == []
    book.run(*prune, "2999-01-01")
    assert book.verify()["faults"] == []
    kinds = [json.loads(entry.body)["kind"] for entry in book.entries()]
    assert kinds == ["open", "checkpoint", "close"]


def test_what_no_checkpoint_stands_for_cannot_be_deleted(book):
    backdate(book, 17)
    book.run("prune", "--config", "oar.yaml", "--before", "2021-01-01")
    with (
        psycopg.connect(book.conninfo) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"),
    ):
        connection.execute("DELETE FROM oar_internal.entries")


def test_a_proxy_goes_on_after_its_entries_were_pruned(book):
    async def work():
        async with Ledger(book.conninfo) as one:
            await answer(one)
            prune = ("prune", "--config", "oar.yaml", "--before", "2999-01-01")
            await asyncio.to_thread(book.run, *prune)
            await answer(one)

    asyncio.run(work())
    assert book.verify()["faults"] == []


def test_the_commands_of_the_governance_page_work(book):
    page = (Path(__file__).parents[2] / "docs" / "governance.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in "".join(blocks).splitlines() if line.startswith("oar audit")]
    assert {line.split()[2] for line in lines} == {
        "verify",
        "heads",
        "tail",
        "show",
        "export",
        "prune",
    }
    ask = json.loads(book.first("ask").body)["ask"]
    for line in lines:
        command, _, target = line.replace(str(uuid.UUID(int=0)), ask).partition(" > ")
        printed = book.run(*command.split()[2:])
        assert printed
        if target:
            (book.directory / target).write_text(printed)


def test_the_options_of_verify_are_checked(book):
    assert book.run("verify", status=2) == ""
    (book.directory / "heads.json").write_text("[]")
    assert book.run("verify", "--config", "oar.yaml", "--heads", "heads.json", status=2) == ""
    assert book.run("verify", "missing.jsonl", status=2) == ""


def test_an_export_of_no_time_is_a_mistake(book):
    day = ("--since", "2026-01-02", "--until", "2026-01-02")
    assert book.run("export", "--config", "oar.yaml", *day, status=2) == ""
