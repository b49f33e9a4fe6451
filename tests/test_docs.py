"""Documentation that lags behind the code fails here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest
import typer.main
from oar_adapters.registry import open_adapter
from oar_proxy import errors
from oar_proxy.cli import app
from oar_proxy.settings import Settings
from pydantic import BaseModel
from pydantic.fields import FieldInfo

DOCS = Path(__file__).parent.parent / "docs"


def sections(text: str) -> dict[str, str]:
    """Return what stands under each third-level heading."""
    parts = re.split(r"^(#+) (.*)$", text, flags=re.MULTILINE)
    return {
        parts[i + 1].strip().strip("`"): parts[i + 2]
        for i in range(1, len(parts), 3)
        if parts[i] == "###"
    }


OPERATOR = sections((DOCS / "operator.md").read_text(encoding="utf-8"))


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        nested = [
            part
            for part in (field.annotation, *get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, BaseModel)
        ]
        if nested:
            placeholder = ".NAME" if field.annotation not in nested else ""
            yield from fields(nested[0], f"{path}{placeholder}.")
        else:
            yield path, field


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "Required."
    value = field.get_default(call_default_factory=True)
    return "Default: none." if value is None else f"Default: `{value}`."


SETTINGS = dict(fields(Settings))


def test_the_settings_were_found():
    assert {"listen.port", "owners.NAME.schema", "log_level"} <= SETTINGS.keys()


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_has_a_heading_and_its_default(path: str):
    assert OPERATOR[path].strip().startswith(default(SETTINGS[path]))


def commands(
    command: click.Command, path: tuple[str, ...] = ("oar",)
) -> Iterator[tuple[str, click.Command]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path), command
    else:
        for name, child in children.items():
            yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_heading_that_names_its_options(name: str):
    text = OPERATOR[name]
    missing = [
        option
        for parameter in COMMANDS[name].params
        for option in parameter.opts
        if option.startswith("--") and option != "--help" and f"`{option}`" not in text
    ]
    assert missing == []


def test_no_heading_is_left_of_what_is_gone():
    known = SETTINGS.keys() | COMMANDS.keys()
    shaped = {name for name in OPERATOR if name.startswith("oar ") or re.search(r"\w[._]\w", name)}
    assert shaped - known == set()


@pytest.mark.parametrize("adapter", ["postgres", "sqlite", "mariadb"])
def test_every_option_of_an_adapter_is_in_the_table(adapter: str):
    text = (DOCS / "adapters.md").read_text(encoding="utf-8")
    documented = re.findall(rf"^\| `{adapter}\w*` \| `(\w+)` \|", text, flags=re.MULTILINE)
    with pytest.raises(ValueError, match="unknown option nonsense") as caught:
        open_adapter(f"{adapter}:///x", {"nonsense": ""})
    known = str(caught.value).partition(" takes ")[2].split(", ")
    assert sorted(documented) == known


def all_errors(base: type[errors.OarError] = errors.OarError) -> Iterator[type[errors.OarError]]:
    yield base
    for child in base.__subclasses__():
        yield from all_errors(child)


def test_every_sqlstate_is_in_the_table_and_no_other():
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([0-9A-Z]{5})` \|", text, flags=re.MULTILINE)
    assert documented == sorted({error.sqlstate for error in all_errors()})


@pytest.mark.parametrize(
    "page", sorted(DOCS.parent.glob("*.md")) + sorted(DOCS.glob("*.md")), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


CODE = (DOCS / "code.md").read_text(encoding="utf-8")
PROXY = DOCS.parent / "proxy" / "oar_proxy"
PLACED = re.findall(
    r"`([\w/]+\.py)`((?: `(?![\w/]+\.py`)[\w.]+`,?)*)", CODE.partition("## Which file")[0]
)


@pytest.mark.parametrize(("file", "listed"), PLACED)
def test_what_is_said_to_be_in_a_file_is_there(file: str, listed: str):
    names = set()
    for node in ast.walk(ast.parse((PROXY / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
    assert set(re.findall(r"`([\w.]+)`", listed)) <= names


def test_every_file_belongs_somewhere_and_none_that_is_gone():
    belong = re.findall(r"`(\w+(?:\.py|/))`", CODE.partition("## Which file")[2])
    files = {path.name for path in PROXY.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.name}/" for path in PROXY.glob("*/__init__.py")}
    assert sorted(belong) == sorted(files | packages)
