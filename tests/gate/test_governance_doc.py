"""docs/governance.md says what the code does: its examples are read and run here."""

import re
from pathlib import Path

import pytest
from oar_policies.parse import PolicyError, parse_policy

PAGE = (Path(__file__).parents[2] / "docs" / "governance.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_policy_on_the_page_is_read(text):
    policy = parse_policy(text, owner="logistics", source="page")
    assert policy.digest != "none"


@pytest.mark.parametrize("query", blocks("sql"))
def test_every_query_on_the_page_runs_for_an_auditor(hub, query):
    with hub.as_user(hub.user("oar_auditor")) as connection:
        cursor = connection.execute(query)
        assert cursor.description


@pytest.mark.parametrize("view", ["asks", "steps", "disclosures", "policies"])
def test_every_column_of_the_views_is_on_the_page_in_order(hub, view):
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `oar.{view}` |")]
    columns = hub.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'oar' AND table_name = %s ORDER BY ordinal_position",
        view,
    )
    told = re.sub(r"\(.*?\)", "", line.split("|")[2])
    assert re.findall(r"`(\w+)`", told) == [name for (name,) in columns]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("", "x: 1\nversion: 1"),
        ("limits.", "version: 1\nlimits: {x: 1}"),
        ("tables.<table>.", "version: 1\ntables: {t: {x: 1}}"),
        ("tables.<table>.columns.<column>.", "version: 1\ntables: {t: {columns: {c: {x: 1}}}}"),
        ("tables.<table>.min_group.", "version: 1\ntables: {t: {min_group: {x: 1}}}"),
        ("key_disclosure[].", "version: 1\nkey_disclosure: [{x: 1}]"),
        ("accept_keys[].", "version: 1\naccept_keys: [{x: 1}]"),
        ("model.", "version: 1\nmodel: {x: 1}"),
    ],
)
def test_every_field_is_on_the_page(place, text):
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, owner="o", source="s")
    (known,) = re.findall(r"\(known: (.*)\)", caught.value.message)
    for field in known.split(", "):
        assert f"| `{place}{field}` |" in PAGE
