"""A student club whose tables lie with two owners, and a model server that reads what it is sent.

``registry`` (SQLite) holds the members, ``treasury`` (PostgreSQL) what they received. ``annex``
holds a few more rows of the members' table, ``library`` another table.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
import psycopg.conninfo
import pytest
from modelserver import ModelServer, Reply, Script, asked, scripted, serving
from oar_bench.addresses import owner_url
from oar_policies.parse import parse_policy
from oar_proxy.app import open_application
from oar_proxy.drafters.model import ChatModel
from oar_proxy.protocols.attempt import Inquiry
from oar_proxy.protocols.contacts import Contacts, everyone
from oar_proxy.protocols.named import Run, answer
from oar_proxy.question import Question
from oar_proxy.settings import DrafterSettings, HubSettings, Listen, OwnerSettings, Settings

ResultT = TypeVar("ResultT")

KEY = "recD078PnS3x2doBe"
MEMBERS = [
    (KEY, "Ada", "Vice President"),
    ("recT92PyyZCAq3R38", "Bo", "President"),
    *((f"recMember{number:05}", f"member {number}", "Member") for number in range(150)),
]
INCOME = [
    ("i1", KEY, 50),
    ("i2", "recT92PyyZCAq3R38", 200),
    *((f"x{number}", f"recMember{number:05}", number) for number in range(150)),
]
VICE_PRESIDENT = "What is the amount of the funds that the Vice President received?"

READABLE = "version: 1\nmodel: {rows: allow}\n"
OPEN = READABLE + "key_disclosure:\n  - {column: member.member_id, to: [treasury], max_keys: 5}\n"


def owner_of(table: str, material: dict[str, Any]) -> str:
    # A comment may stand behind its name.
    found = re.compile(rf"^table {table}\b", re.MULTILINE)
    return next(o["owner"] for o in material["owners"] if found.search(o["schema"]))


def plan_next(material: dict[str, Any]) -> dict[str, str]:
    """Ask for the vice president's key, then for what that key received: as a good planner does."""
    earlier = material["earlier"]
    if not earlier:
        sql = "SELECT member_id FROM member WHERE position = 'Vice President' LIMIT 5"
        return {"owner": owner_of("member", material), "sql": sql}
    if len(earlier) == 1 and earlier[0].get("rows"):
        ((key,),) = earlier[0]["rows"]
        sql = f"SELECT amount FROM income WHERE link_to_member = '{key}' LIMIT 5"
        return {"owner": owner_of("income", material), "sql": sql}
    return {"owner": "", "sql": ""}


def write_local(material: dict[str, Any]) -> dict[str, str]:
    """Compute what can be computed alone."""
    if "table member\n" in material["schema"]:
        return {"sql": "SELECT member_id FROM member WHERE position = 'Vice President'"}
    if "table income\n" in material["schema"]:
        return {"sql": "SELECT count(*), sum(amount) FROM income"}
    return {"sql": ""}


def compose(material: dict[str, Any]) -> dict[str, Any]:
    """Answer with the amounts that came, if any did."""
    results = [*material["results"], *filter(None, [material.get("your_own_result")])]
    for result in results:
        if result.get("columns") == ["amount"]:
            return {"unanswerable": False, "answer_rows": result["rows"]}
    return {"unanswerable": True, "answer_rows": []}


def draft(material: dict[str, Any]) -> dict[str, str]:
    return {
        "sql": "WITH vice AS (SELECT member_id FROM member WHERE position = 'Vice President') "
        "SELECT amount FROM income JOIN vice ON link_to_member = member_id",
        "reason": "",
    }


WELL_BEHAVED: dict[str, Script] = {
    "draft": draft,
    "owner": write_local,
    "planner": plan_next,
    "planned": lambda material: {
        "queries": [
            {
                "owner": owner_of("member", material),
                "sql": "SELECT member_id FROM member WHERE position = 'Vice President'",
            },
            {
                "owner": owner_of("income", material),
                "sql": "SELECT link_to_member, amount FROM income",
            },
        ]
    },
    "receiver": compose,
}


class Prompts:
    """What a server received, read as the prompts of protocols: role, material, request."""

    def __init__(self, server: ModelServer) -> None:
        self.received = [(*asked(request), request) for request in server.received]

    def materials(self, role: str) -> list[dict[str, Any]]:
        return [material for called, material, _ in self.received if called == role]


class Club:
    """The running proxy and how a protocol is run on it."""

    def __init__(self, runner, application, hub: str) -> None:
        self.runner = runner
        self.application = application
        self.hub = hub
        self.catalog = application.catalog
        self.run_async = runner.run

    def policies(self, **texts: str) -> None:
        """Put policies in force; without a text an owner lets a model read, and no key leave."""
        self.application.owner_queries.access.gate.replace_policies(
            {
                owner: parse_policy(texts.get(owner, READABLE), owner=owner, source=owner)
                for owner in ("registry", "treasury", "library", "annex")
            }
        )

    def ask(
        self,
        protocol: str,
        question: str = VICE_PRESIDENT,
        *faults: Reply,
        contacts: Contacts | None = None,
        budget: int = 2048,
        timeout: float = 20.0,
        **scripts: Script,
    ) -> tuple[Run, Prompts]:
        inquiry = self.inquiry(question, contacts, budget)

        async def run(model: ChatModel) -> Run:
            return await answer(protocol, inquiry, model, self.application.owner_queries)

        return self.consult(run, *faults, timeout=timeout, **scripts)

    def inquiry(
        self,
        question: str = VICE_PRESIDENT,
        contacts: Contacts | None = None,
        budget: int = 2048,
    ) -> Inquiry:
        asked_of = contacts or everyone(("registry", "treasury"))
        return Inquiry(Question(question, "anna"), self.catalog, asked_of, budget)

    def consult(
        self,
        use: Callable[[ChatModel], Awaitable[ResultT]],
        /,
        *faults: Reply,
        timeout: float = 20.0,
        **scripts: Script,
    ) -> tuple[ResultT, Prompts]:
        """Have something done with a model; return also what the model was sent."""
        with serving(scripted({**WELL_BEHAVED, **scripts}, *faults)) as server:
            settings = DrafterSettings(
                kind="litellm",
                model="openai/tiny",
                api_base=server.url,
                api_key="k",
                timeout=timeout,
            )
            done = self.runner.run(use(ChatModel(settings, first_pause=0.01)))
            return done, Prompts(server)

    def recorded(self, sql: str) -> list[tuple]:
        with psycopg.connect(self.hub, autocommit=True) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture(scope="session")
def started_club(new_database, tmp_path_factory):
    directory = tmp_path_factory.mktemp("club")
    registry = sqlite3.connect(directory / "registry.sqlite")
    with registry:
        registry.execute(
            "CREATE TABLE member (member_id TEXT PRIMARY KEY, name TEXT, position TEXT)"
        )
        registry.executemany("INSERT INTO member VALUES (?, ?, ?)", MEMBERS)
    registry.close()
    library = sqlite3.connect(directory / "library.sqlite")
    with library:
        library.execute("CREATE TABLE book (title TEXT, lent_to TEXT)")
        library.execute("INSERT INTO book VALUES ('SQL', ?)", (KEY,))
    library.close()
    annex = sqlite3.connect(directory / "annex.sqlite")
    with annex:
        annex.execute("CREATE TABLE member (member_id TEXT PRIMARY KEY, name TEXT, position TEXT)")
        annex.execute("INSERT INTO member VALUES ('recAnnex1', 'Cy', 'Vice President')")
    annex.close()
    treasury = new_database("treasury")
    with psycopg.connect(treasury) as connection:
        connection.execute("CREATE TABLE income (income_id text, link_to_member text, amount int)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO income VALUES (%s, %s, %s)", INCOME)
    urls = {
        "registry": f"sqlite:///{directory}/registry.sqlite",
        "treasury": owner_url(treasury),
        "library": f"sqlite:///{directory}/library.sqlite",
        "annex": f"sqlite:///{directory}/annex.sqlite",
    }
    hub = new_database("hub")
    settings = Settings(
        owners={
            name: OwnerSettings(url=url, schema="registry" if name == "annex" else name)
            for name, url in urls.items()
        },
        hub=HubSettings(dsn=hub),
        listen=Listen(port=0),
    )
    with asyncio.Runner() as runner:
        context = open_application(settings)
        application = runner.run(context.__aenter__())
        try:
            yield Club(runner, application, hub)
        finally:
            runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def club(started_club):
    """The club, its registry's keys allowed to leave for the treasury."""
    started_club.policies(registry=OPEN)
    return started_club


@pytest.fixture
def reply():
    """Make an answer of the model server."""
    return Reply


@pytest.fixture(scope="session")
def well_behaved():
    """Scripts of a model that reads its prompt, by role."""
    return WELL_BEHAVED
