"""A benchmark of two organisations, and a model that answers its questions from its prompts alone.

``student_club`` is like BIRD's: four owners, all contacted. ``guild`` is like PeopleJoin's: a user
asks, owners have descriptions, one has no table and refers to another. The model knows how each
question is worked out; whose tables there are, and every value, it has from the prompt it reads.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = "recD078PnS3x2doBe"
MEMBERS = [
    (KEY, "Ada", "Vice President", "m1"),
    ("recT92PyyZCAq3R38", "Bo", "President", "m2"),
    *((f"recMember{n:05}", f"name {n}", "Member", "m3" if n < 3 else "m4") for n in range(150)),
]
INCOME = [
    (KEY, 50, "Dues"),
    ("recT92PyyZCAq3R38", 200, "Sponsor"),
    *((f"recMember{n:05}", n + 1, "Dues") for n in range(150)),
]
MAJORS = [("m1", "Physics", "Science"), ("m2", "Law", "Humanities"),
          ("m3", "Soil", "Agriculture"), ("m4", "Music", "Arts")]  # fmt: skip
EVENTS = [(n, f"event {n}", "Meeting" if n % 4 == 0 else "Social") for n in range(40)]
BUDGETS = [(n, "Food" if n % 2 else "Venue", n * 10) for n in range(40)]
LEAFLETS = [(n, " ".join(f"page{n} word{w}" for w in range(45))) for n in range(9)]
CHECKSUMS = [hashlib.sha256(bytes([n])).hexdigest() for n in range(90)]
SEALS = CHECKSUMS[:20]

STUDENT_CLUB = {
    "owner_1": {"checksum": ("file TEXT, checksum TEXT", [(f"f{n}", c) for n, c in enumerate(CHECKSUMS)]),
                "member": ("member_id TEXT PRIMARY KEY, first_name TEXT, position TEXT, link_to_major TEXT", MEMBERS)},
    "owner_2": {"income": ("link_to_member TEXT, amount INTEGER, source TEXT", INCOME),
                "sealed": ("letter INTEGER, seal TEXT", list(enumerate(SEALS[:5])))},
    "owner_3": {"major": ("major_id TEXT PRIMARY KEY, major_name TEXT, college TEXT", MAJORS),
                "leaflet": ("leaflet_id INTEGER, content TEXT", LEAFLETS),
                "charter": ("charter_id INTEGER, seal TEXT", list(enumerate(SEALS)))},
    "owner_4": {"event": ("event_id INTEGER PRIMARY KEY, event_name TEXT, type TEXT", EVENTS),
                "budget": ("link_to_event INTEGER, category TEXT, spent INTEGER", BUDGETS)},
}  # fmt: skip
GUILD = {
    "alice": {"visitor": ("day TEXT, visitors INTEGER", [("may", 3), ("june", 4)])},
    "bob": {"instructor": ("instructor_id TEXT, name TEXT, subject TEXT", [("i1", "Ines", "painting"), ("i2", "Olga", "glass")])},
    "carol": {"instructor": ("instructor_id TEXT, name TEXT, subject TEXT", [("i3", "Pia", "painting")])},
    "dave": {},
    "erin": {"pay": ("instructor_id TEXT, salary INTEGER", [("i1", 4000), ("i2", 5000), ("i3", 6000)])},
    "frank": {"building": ("name TEXT, floors INTEGER", [("Mill", 4), ("Barn", 1)])},
}  # fmt: skip
SAID = {
    "alice": ("The user asks.", None),
    "bob": ("The user knows instructors, their names and what they teach.", None),
    "carol": ("The user knows further instructors, their names and what they teach.", None),
    "dave": ("The user knows who to ask about instructors.",
             "erin has relevant information on following topics: salaries"),
    "erin": ("", None),
    "frank": ("The user keeps buildings and their floors.", None),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One query. ``{keys}`` are the values of the step before; ``blind`` is without those."""

    table: str
    sql: str
    blind: str = ""


@dataclass(frozen=True)
class Task:
    """A question, its reference answer, and how it is worked out; the last step has the answer."""

    id: str
    org: str
    question: str
    stratum: str
    kappa: int
    rows: list[list[Any]]
    draft: str
    steps: tuple[Step, ...] = ()
    columns: tuple[str, ...] = ()


def one_step(*facts: Any, table: str, sql: str, columns: tuple[str, ...]) -> Task:
    return Task(*facts, draft=sql, steps=(Step(table, sql),), columns=columns)


PAID = Step(
    "income",
    "SELECT amount FROM income WHERE link_to_member IN ({keys}) LIMIT 5",
    "SELECT link_to_member, amount FROM income",
)
TASKS = [
    Task("vice", "student_club",
         "What is the amount of the funds that the Vice President received?", "two-owner", 2, [[50]],
         "SELECT amount FROM income JOIN member ON link_to_member = member_id WHERE position = 'Vice President'",
         (Step("member", "SELECT member_id FROM member WHERE position = 'Vice President' LIMIT 5"), PAID),
         ("amount",)),
    Task("president", "student_club", "What did the President receive?", "two-owner", 2, [[200]],
         "WITH p AS (SELECT member_id FROM member WHERE position = 'President') "
         "SELECT amount FROM income JOIN p ON link_to_member = member_id",
         (Step("member", "SELECT member_id FROM member WHERE position = 'President'"), PAID),
         ("amount",)),
    Task("college", "student_club", "Which college is the President's major of?", "two-owner", 2, [["Humanities"]],
         "SELECT college FROM major JOIN member ON major_id = link_to_major WHERE position = 'President'",
         (Step("member", "SELECT link_to_major FROM member WHERE position = 'President'"),
          Step("major", "SELECT college FROM major WHERE major_id IN ({keys})",
               "SELECT major_id, college FROM major")),
         ("college",)),
    Task("agriculture", "student_club", "How much did members of Agriculture receive in total?", "three-or-more", 3, [[6]],
         "SELECT sum(amount) AS total FROM income JOIN member ON link_to_member = member_id "
         "JOIN major ON link_to_major = major_id WHERE college = 'Agriculture'",
         (Step("major", "SELECT major_id FROM major WHERE college = 'Agriculture'"),
          Step("member", "SELECT member_id FROM member WHERE link_to_major IN ({keys})",
               "SELECT member_id, link_to_major FROM member"),
          Step("income", "SELECT sum(amount) AS total FROM income WHERE link_to_member IN ({keys})",
               "SELECT link_to_member, amount FROM income")),
         ("total",)),
    Task("members", "student_club", "What did the members of income 1 to 20 receive in all?", "two-owner", 2, [[210]],
         "SELECT sum(amount) AS total FROM income JOIN member ON link_to_member = member_id WHERE member_id BETWEEN 'recM' AND 'recMember00019'",
         (Step("member", "SELECT member_id, first_name FROM member WHERE member_id BETWEEN 'recM' AND 'recMember00019'"),
          Step("income", "SELECT sum(amount) AS total FROM income WHERE link_to_member IN ({keys})",
               "SELECT link_to_member, amount FROM income")),
         ("total",)),
    one_step("meetings", "student_club", "How many events are meetings?", "single-owner", 1, [[10]],
             table="event", sql="SELECT count(*) AS n FROM event WHERE type = 'Meeting'", columns=("n",)),
    one_step("food", "student_club", "What was spent on food at event 3?", "single-owner", 1, [[30]],
             table="budget", columns=("spent",),
             sql="SELECT spent FROM budget JOIN event ON link_to_event = event_id "
             "WHERE event_name = 'event 3' AND category = 'Food'"),
    one_step("names", "student_club", "Name all events.", "single-owner", 1, [[e[1]] for e in EVENTS],
             table="event", sql="SELECT event_name FROM event", columns=("event_name",)),
    one_step("leaflets", "student_club", "What do the leaflets say?", "single-owner", 1, [[text] for _, text in LEAFLETS],
             table="leaflet", sql="SELECT content FROM leaflet", columns=("content",)),
    one_step("seals", "student_club", "What are the seals of the charters?", "single-owner", 1, [[s] for s in SEALS],
             table="charter", sql="SELECT seal FROM charter", columns=("seal",)),
    one_step("checksums", "student_club", "Which checksums are there?", "single-owner", 1, [[c] for c in CHECKSUMS],
             table="checksum", sql="SELECT checksum FROM checksum", columns=("checksum",)),
    Task("letters", "student_club", "How many letters have the seals of charters 0 to 7?", "two-owner", 2, [[5]],
         "SELECT count(*) AS n FROM sealed JOIN charter USING (seal) WHERE charter_id < 8",
         (Step("charter", "SELECT seal FROM charter WHERE charter_id < 8"),
          Step("sealed", "SELECT count(*) AS n FROM sealed WHERE seal IN ({keys})",
               "SELECT seal, letter FROM sealed")),
         ("n",)),
    Task("shoes", "student_club", "What is the President's shoe size?", "unanswerable", 0, [], ""),
    one_step("painting", "guild", "Which instructors teach painting?", "row-split", 1, [["Ines"], ["Pia"]],
             table="instructor", sql="SELECT name FROM instructor WHERE subject = 'painting'", columns=("name",)),
    Task("salary", "guild", "What salary has the instructor that has the name Ines?", "two-owner", 2, [[4000]],
         "SELECT salary FROM pay JOIN instructor USING (instructor_id) WHERE name = 'Ines'",
         (Step("instructor", "SELECT instructor_id FROM instructor WHERE name = 'Ines'"),
          Step("pay", "SELECT salary FROM pay WHERE instructor_id IN ({keys})",
               "SELECT instructor_id, salary FROM pay")),
         ("salary",)),
    one_step("may", "guild", "How many visitors were there in May?", "single-owner", 1, [[3]],
             table="visitor", sql="SELECT visitors FROM visitor WHERE day = 'may'", columns=("visitors",)),
    one_step("floors", "guild", "How many floors do buildings have in all?", "single-owner", 1, [[5]],
             table="building", sql="SELECT sum(floors) AS floors FROM building", columns=("floors",)),
    Task("tickets", "guild", "What is the price of a ticket for buildings?", "unanswerable", 0, [], ""),
]  # fmt: skip
BY_QUESTION = {task.question: task for task in TASKS}


def write(root: Path) -> Path:
    """Write the benchmark's files; return its directory."""
    for org, owners in {"student_club": STUDENT_CLUB, "guild": GUILD}.items():
        folder = root / "orgs" / org
        folder.mkdir(parents=True)
        entries = []
        for owner, tables in owners.items():
            with closing(sqlite3.connect(folder / f"{owner}.sqlite")) as database, database:
                for table, (columns, rows) in tables.items():
                    database.execute(f"CREATE TABLE {table} ({columns})")
                    marks = ", ".join("?" * len(rows[0]))
                    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            entry: dict[str, Any] = {"owner": owner, "tables": {table: {} for table in tables}}
            if org == "guild":
                entry["description"], entry["referral"] = SAID[owner]
            entries.append(entry)
        catalog: dict[str, Any] = {"org": org, "owners": entries}
        if org == "guild":
            catalog["asking_user"] = "alice"
        (folder / "catalog.json").write_text(json.dumps(catalog))
    lines = [
        {"id": t.id, "org": t.org, "question": t.question, "stratum": t.stratum, "kappa": t.kappa,
         "unanswerable": t.stratum == "unanswerable", "rows": t.rows, "difficulty": "simple"}
        for t in TASKS
    ]  # fmt: skip
    (root / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


# --- the model ------------------------------------------------------------------------------------


def _task(material: dict[str, Any]) -> Task:
    return BY_QUESTION[material["question"]]


def _holds(schema: str, table: str) -> bool:
    return f"table {table}\n" in schema


def _asks(material: dict[str, Any]) -> list[tuple[str, int, Step]]:
    """Who would be asked what: each step goes to every listed owner of its table."""
    found = []
    for place, step in enumerate(_task(material).steps):
        owners = [o["owner"] for o in material["owners"] if _holds(o["schema"], step.table)]
        if not owners:
            return []
        found += [(owner, place, step) for owner in owners]
    return found


def plan_next(material: dict[str, Any]) -> dict[str, str]:
    """Write the next query, with the values that the step before brought."""
    asks, earlier = _asks(material), material["earlier"]
    if len(earlier) >= len(asks):
        return {"owner": "", "sql": ""}
    owner, place, step = asks[len(earlier)]
    before = [told for told, ask in zip(earlier, asks, strict=False) if ask[1] == place - 1]
    if "{keys}" not in step.sql:
        return {"owner": owner, "sql": step.sql}
    keys = [row[0] for told in before for row in told.get("rows", ())]
    if keys:
        listed = ", ".join(f"'{key}'" for key in keys)
        return {"owner": owner, "sql": step.sql.format(keys=listed)}
    if any(told.get("status") == "executed" for told in before):
        return {"owner": owner, "sql": step.blind}
    return {"owner": "", "sql": ""}


def plan_all(material: dict[str, Any]) -> dict[str, Any]:
    asks = _asks(material)
    return {"queries": [{"owner": owner, "sql": s.blind or s.sql} for owner, _, s in asks]}


def write_local(material: dict[str, Any]) -> dict[str, str]:
    """Compute what the last of one's own tables gives, without the values of others."""
    own = [s for s in _task(material).steps if _holds(material["schema"], s.table)]
    return {"sql": (own[-1].blind or own[-1].sql) if own else ""}


def compose(material: dict[str, Any]) -> dict[str, Any]:
    """Answer with all of the complete results that have the columns of the answer."""
    results = [*material["results"], *filter(None, [material.get("your_own_result")])]
    columns = list(_task(material).columns)
    parts = [r for r in results if r.get("columns") == columns and not r.get("truncated")]
    rows = [row for part in parts for row in part["rows"]]
    return {"unanswerable": not parts, "answer_rows": rows}


def draft(material: dict[str, Any]) -> dict[str, str]:
    """Draft where the schema has the tables; that of a question without one is empty."""
    task = _task(material)
    known = all(_holds(material["schema"], step.table) for step in task.steps)
    return {"sql": task.draft if known else "", "reason": ""}


def name_owners(material: dict[str, Any]) -> dict[str, Any]:
    return {"owners": list(dict.fromkeys(owner for owner, _, _ in _asks(material)))}


def choose(material: dict[str, Any]) -> dict[str, str]:
    return {"protocol": "relay" if len(_task(material).steps) > 1 else "fan-out"}


MODEL = {
    "draft": draft,
    "owner": write_local,
    "planner": plan_next,
    "planned": plan_all,
    "receiver": compose,
    "self": choose,
    "ask": name_owners,
}
