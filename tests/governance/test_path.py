"""The path on docs/governance.md, from an empty file on: every command is run, in its order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from oar_policies.lint import CODES
from oar_proxy.settings import load

PAGE = (Path(__file__).parents[2] / "docs" / "governance.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Tested before it is in force")[2].partition("\n## ")[0]
BIN = Path(sys.executable).parent


def test_every_command_of_the_page_runs(market, new_database, running_proxy):
    market.configure(hub={"dsn": new_database("hub")}, listen={"port": 0})
    with running_proxy(load(market.directory / "oar.yaml")):
        pass  # its ledger is there then
    ran = []
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL):
        if language == "yaml":
            market.write("logistics", text)
        if language == "sh":
            ran.append(text.split()[:3])
            subprocess.run(
                ["sh", "-ec", text],
                cwd=market.directory,
                env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
                check=True,
                timeout=60,
            )
    assert {tuple(words) for words in ran} >= {
        ("oar", "catalog", "--config"),
        ("oar", "policy", "schema"),
        ("oar", "policy", "lint"),
        ("oar", "policy", "test"),
        ("oar", "policy", "explain"),
        ("mkdir", "-p", "before"),
    }
    assert len(market.json("policy", "test", "--config", "oar.yaml")) == 3


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_on_the_page_with_its_severity(code):
    (line,) = (line for line in SECTION.splitlines() if f"`{code}`" in line.split(" | ")[0])
    assert line.split(" | ")[1] == CODES[code]


def test_every_field_of_a_test_is_on_the_page(market):
    market.write("logistics", "version: 1\ntests: [{x: 1}]\n")
    market.run("policy", "test", "--config", "oar.yaml", status=2)
    (known,) = re.findall(r"\(known: (.*)\)", market.said)
    table = SECTION.partition("| field of a test |")[2]
    for field in known.split(", "):
        assert f"`{field}`" in table
