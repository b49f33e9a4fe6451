"""psql: what people type, Ctrl-C included."""

from __future__ import annotations

import re
import subprocess

from common import BIG, CITY, COUNT, CURSOR, DAYS, FAILS, JOIN, SLOW, interrupt, main

PSQL = ["psql", "-X", "-A", "-t"]


def ask(*lines, fails=False):
    """Type lines; returns what is shown."""
    process = subprocess.run(
        PSQL, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=60
    )
    if bool(process.stderr) != fails:
        raise RuntimeError(process.stderr or "nothing failed")
    return (process.stdout + process.stderr).replace("\n", " ")


def connect():
    told = ask(
        r"\echo :SERVER_VERSION_NAME :ENCODING :USER :HOST", "SELECT version();", r"\conninfo"
    )
    # What names the one side or the other: a database, a port, a process.
    return re.sub(r"(?i)(database|port|pid)[ |]\"?\w+\"?", r"\1", told)


def introspect():
    return ask(r"\dn shop", r"\dv fleet.*", r"\d shop.orders", r"\dv+ *.deliveries", r"\dp shop.*")


def parameters():
    typed = JOIN.replace("$1", ":'city'").replace("$2", ":days")
    return ask(
        rf"\set city '{CITY}'",
        rf"\set days {DAYS}",
        f"{typed};",
        rf"{typed} \gdesc",
        rf"{typed} \gx",
    )


def cursor():
    rows = ask(r"\set FETCH_COUNT 100", f"{CURSOR};").count("|")
    by_hand = ask(
        "BEGIN;",
        f"DECLARE c CURSOR FOR {CURSOR};",
        "FETCH 3 FROM c;",
        "MOVE 1000 FROM c;",
        "COMMIT;",
    )
    return rows, by_hand


def big():
    return ask(rf"\copy ({BIG}) TO STDOUT").count("\t"), ask(f"{BIG};").count("|")


def errors():
    told = ask(
        r"\set VERBOSITY verbose", f"{FAILS};", f"{COUNT};", "BEGIN;", f"{FAILS};", f"{COUNT};", "ROLLBACK;",
        f"{COUNT};", r"\errverbose", fails=True,
    )  # fmt: skip
    # Where in the server's source: for a statement in a failed transaction the simple protocol's
    # part of it says so directly.
    return re.sub(r"LOCATION: .*?:\d+", "", told)


def cancel():
    with subprocess.Popen(
        PSQL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        process.stdin.write(f"{SLOW};\n")
        process.stdin.flush()
        interrupt(process)
        shown, _ = process.communicate(f"{COUNT};\n", timeout=30)
    return shown.replace("\n", " ")


main(connect=connect, introspect=introspect, parameters=parameters, cursor=cursor, big=big,
     errors=errors, cancel=cancel)  # fmt: skip
