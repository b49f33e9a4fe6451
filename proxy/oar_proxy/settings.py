"""Configuration: one YAML file, overridden by ``OAR_…`` environment variables.

Every field here has its heading in ``docs/operator.md``; a test compares the two.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Hashable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)


class ConfigurationError(Exception):
    """The configuration cannot be used.

    ``message`` names the file and each field at fault and never quotes a value, which may be a
    secret; ``hint`` says what to do.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


Name = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]
"""Lower case, so that an environment variable (``OAR_OWNERS__NAME__URL``) can name it too."""


def _not_reserved(schema: str) -> str:
    # The hub's own schemas; PostgreSQL keeps pg_ for itself. The length is NAMEDATALEN - 1.
    if schema in {"oar", "oar_plan", "information_schema", "verified"} or schema.startswith("pg_"):
        raise ValueError("this schema name is reserved")
    if not 0 < len(schema.encode()) < 64:
        raise ValueError("a schema name has 1 to 63 bytes")
    return schema


SchemaName = Annotated[str, AfterValidator(_not_reserved)]


def _for_libpq(dsn: SecretStr) -> SecretStr:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(dsn.get_secret_value())
    except ProgrammingError:
        # libpq's own text quotes the string, with the password in it.
        raise ValueError("this is not a PostgreSQL connection string") from None
    return dsn


ConnectionString = Annotated[SecretStr, AfterValidator(_for_libpq)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listen(_Section):
    """Where clients connect."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 6432
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    max_clients: Annotated[int, Field(ge=1)] = 100
    max_unauthenticated: Annotated[int, Field(ge=1)] = 64
    """Connections that are not clients yet, beside ``max_clients``."""
    startup_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds for TLS, startup and authentication together."""
    max_message_bytes: Annotated[int, Field(ge=65536)] = 256 * 1024 * 1024
    shutdown_timeout: Annotated[float, Field(ge=0)] = 10.0
    """Seconds that running statements are given at a graceful stop."""

    @model_validator(mode="after")
    def _tls_is_a_pair(self) -> Listen:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: set both or neither")
        return self


class HubSettings(_Section):
    """The PostgreSQL behind the proxy: embedded in ``data_dir``, or any server by ``dsn``."""

    data_dir: Path = Path("oar-data/hub")
    dsn: ConnectionString | None = None
    database: str = "oar"
    max_connections: Annotated[int | None, Field(ge=10, le=10000)] = None
    """Of the embedded one. None: as many as clients and the proxy itself need."""


class LedgerSettings(_Section):
    """The ledger is in the hub; this is what is kept of it besides."""

    file: Path | None = None
    """JSON lines, one an entry, on disk before anything is sent. Each proxy has its own."""


class OwnerSettings(_Section):
    """One owner: where it is, the schema its tables are published in, its policy."""

    url: SecretStr
    published_schema: Annotated[SchemaName | None, Field(alias="schema")] = None
    """Defaults to the owner's name. Owners that share one split the rows of same-named tables."""
    policy: Path | None = None
    options: dict[str, str] = {}


class DrafterSettings(_Section):
    """Who turns a question into SQL."""

    kind: Literal["offline", "litellm", "replay"] = "offline"
    model: str | None = None
    api_base: str | None = None
    api_key: SecretStr | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    max_output_tokens: Annotated[int, Field(ge=16)] = 1024
    timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds for one model call."""
    repairs: Annotated[int, Field(ge=0, le=2)] = 2
    file: Path | None = None
    """Recorded drafts, for ``kind: replay``."""
    cache_entries: Annotated[int, Field(ge=0)] = 1000

    @model_validator(mode="after")
    def _complete(self) -> DrafterSettings:
        if self.kind == "litellm" and not self.model:
            raise ValueError("drafter kind litellm needs a model")
        if self.kind == "replay" and not self.file:
            raise ValueError("drafter kind replay needs a file")
        return self


ProtocolName = Literal[
    "compiled",
    "fan-out",
    "relay",
    "relay+",
    "planned",
    "relay+ without keys",
    "relay+ without rows",
    "oar",
    "oar+",
]
"""How a question gets its answer: by one compiled draft, or by one of the paper's protocols."""
PROTOCOLS: Final[tuple[str, ...]] = get_args(ProtocolName)

MIN_BUDGET: Final = 512
MAX_BUDGET: Final = 131_072
"""Tokens. Relay keeps 256 for SQL; no model in use reads more than the most."""


class QuestionSettings(_Section):
    """How questions are answered in sessions that do not say."""

    protocol: ProtocolName = "compiled"
    budget: Annotated[int, Field(ge=MIN_BUDGET, le=MAX_BUDGET)] = 2048
    """Tokens of results that one question may show the model that answers it."""


class Limits(_Section):
    """The proxy's own limits; an owner's policy can only be tighter."""

    max_rows: Annotated[int, Field(ge=1)] = 1_000_000
    """Rows one owner may send for one step."""
    max_bytes: Annotated[int, Field(ge=1)] = 512 * 1024 * 1024
    """Bytes of owners' rows that one statement may hold at once."""
    max_total_bytes: Annotated[int, Field(ge=1)] = 2 * 1024 * 1024 * 1024
    """Bytes of owners' rows that all statements together may hold at once."""
    max_keys: Annotated[int, Field(ge=1)] = 100_000
    """Keys one step may carry to an owner."""
    statement_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for the owners' part of a statement; the session's statement_timeout binds too."""


class ApplicationSettings(_Section):
    """What clients that name themselves alike may ask of the owners in an hour of UTC."""

    application_name: str
    """A pattern with ``*`` and ``?``, in any case; the first one that matches counts."""
    max_statements: Annotated[int | None, Field(ge=1)] = None
    max_rows: Annotated[int | None, Field(ge=1)] = None
    """Rows that owners send, over all statements."""

    @model_validator(mode="after")
    def _limits_something(self) -> ApplicationSettings:
        if self.max_statements is None and self.max_rows is None:
            raise ValueError("an application needs max_statements or max_rows")
        return self


class Settings(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        env_prefix="OAR_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    listen: Listen = Listen()
    hub: HubSettings = HubSettings()
    ledger: LedgerSettings = LedgerSettings()
    owners: dict[Name, OwnerSettings] = {}
    drafter: DrafterSettings = DrafterSettings()
    questions: QuestionSettings = QuestionSettings()
    verified: Path | None = None
    """Directory of verified answers."""
    limits: Limits = Limits()
    applications: dict[Name, ApplicationSettings] = {}
    catalog_refresh: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two looks at the owners' schemas."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    @model_validator(mode="after")
    def _protocol_has_a_model(self) -> Settings:
        if self.questions.protocol != "compiled" and self.drafter.kind != "litellm":
            raise ValueError("a questions.protocol other than compiled needs drafter.kind litellm")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file."""
        return (env_settings, init_settings)


def load(path: Path | None) -> Settings:
    """Read the configuration file, then the environment, which wins.

    Relative paths are relative to the file's directory, defaults and the environment's included,
    so that the working directory does not matter; without a file, to the working directory.
    Raises :class:`ConfigurationError`.
    """
    source = "environment" if path is None else str(path)
    content = {} if path is None else _read(path)
    _reject_unknown_sections()
    try:
        settings = Settings(**content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        told = "; ".join(_fault(tuple(f["loc"]), f["type"], f["msg"]) for f in faults)
        raise ConfigurationError(
            f"configuration in {source} is not valid: {told}",
            hint="docs/operator.md lists every setting",
        ) from None
    except SettingsError as error:
        # Its text names the field and the source; the value is only in its cause.
        raise ConfigurationError(
            f"configuration in the environment is not valid: {error}",
            hint="a section set as a whole has to be JSON; OAR_SECTION__FIELD sets one field",
        ) from None
    return _anchored(settings, Path.cwd() if path is None else path.resolve().parent)


_NAME: Final = re.compile(r"[^\W\d][\w-]{0,62}")
"""How a key looks that may be shown: a secret may stand where a key is expected."""


def _fault(place: tuple[int | str, ...], kind: str, message: str) -> str:
    """Say what is wrong with a setting, without its value."""
    names = [
        str(p) if isinstance(p, int) or _NAME.fullmatch(p) else "…" for p in place if p != "[key]"
    ]
    where = ".".join(names) or "top level"
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(names[-1], _fields(place[:-1]), n=1)
        return f"{where} is not a setting" + (f" (is {close[0]} meant?)" if close else "")
    if place and place[-1] == "[key]":
        return f"{where}: a name has lower-case letters, digits and underscores, at most 63"
    ours = message.removeprefix("Value error, ")
    return f"{where}: {message.lower() if ours is message else ours}"


def _fields(place: tuple[int | str, ...]) -> Collection[str]:
    """The settings that there are at a place."""
    kind: Any = Settings
    for part in place:
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            kind = kind.model_fields[str(part)].annotation
    return _fields_of(kind)


class _DuplicateKey(yaml.MarkedYAMLError):
    pass


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML says that a key stands once in a mapping; PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _DuplicateKey(
                    problem=f"key {key} stands twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)  # noqa: S506 - safe
    except OSError as error:
        raise ConfigurationError(
            f"configuration file {path} cannot be read: {error.strerror}",
            hint="oar demo writes a complete example; docs/operator.md lists every setting",
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"configuration file {path} is not UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"configuration file {path} is not valid YAML: {_yaml_fault(error)}",
            hint="oar demo writes a complete example; a value with : # or quotes stands in quotes",
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigurationError(
            f"configuration file {path} is not a mapping of sections",
            hint="oar demo writes a complete example; docs/operator.md lists every setting",
        )
    return content


def _yaml_fault(error: yaml.YAMLError) -> str:
    # PyYAML quotes tags and aliases, which an unquoted password that begins with ! or * looks
    # like; what its scanner says quotes one character at most.
    if not isinstance(error, yaml.MarkedYAMLError):
        return "cannot be read"
    quotable = isinstance(error, (_DuplicateKey, yaml.scanner.ScannerError))
    text = str(error.problem) if quotable else "cannot be read"
    mark = error.problem_mark
    return text if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {text}"


_PREFIX: Final = "OAR_"

_OPTIONS: Final = frozenset({"OAR_CONFIG", "OAR_DSN"})
"""Variables that stand for options of commands, and are no settings."""


def _reject_unknown_sections() -> None:
    # pydantic-settings ignores variables it does not know. One with the nested delimiter cannot
    # be anything but a setting, so a misspelt section must not pass for one that was set.
    for name in os.environ:
        section, delimiter, _ = name.upper().removeprefix(_PREFIX).partition("__")
        if not (name.upper().startswith(_PREFIX) and delimiter):
            continue
        field = Settings.model_fields.get(section.lower())
        if field is None or not _fields_of(field.annotation):
            raise ConfigurationError(
                f"environment variable {name} names no setting: no section {section.lower()}"
                + _meant(name),
                hint="docs/operator.md lists every setting",
            )


def strangers() -> list[str]:
    """Say of each variable of the environment that looks like a setting's, and is none.

    It may be another program's, or hold a password for ``--password-from``: no error, and the
    value is nobody's to see. What Kubernetes sets for services whose names begin so is left out.
    """
    names = [name for name in os.environ if name.upper().startswith(_PREFIX)]
    ends = "_SERVICE_HOST"
    services = {name.removesuffix(ends) for name in names if name.endswith(ends)}
    ignored = tuple(f"{service}_{part}" for service in services for part in ("SERVICE_", "PORT"))
    known = _OPTIONS | {f"{_PREFIX}{field.upper()}" for field in Settings.model_fields}
    return [
        f"environment variable {name} is not a setting" + _meant(name)
        for name in names
        if name.upper() not in known
        and "__" not in name.removeprefix(_PREFIX)
        and not name.startswith(ignored)
    ]


def _meant(name: str) -> str:
    """Return which variable a misspelt one may be meant to be; nothing where none is close."""
    there = [*_OPTIONS]
    for section, field in Settings.model_fields.items():
        path = f"{_PREFIX}{section.upper()}"
        parts = [part.upper() for part in _fields_of(field.annotation)]
        if get_origin(field.annotation) is dict:
            # Whatever stands in the middle is the name of one of them.
            given = re.fullmatch(rf"{path[:-1]}S?_+(\w+?)_+({'|'.join(parts)})", name.upper())
            if given is not None:
                return f" (is {path}__{given[1]}__{given[2]} meant?)"
            path += "__NAME"
        there += [f"{path}__{part}" for part in parts] or [path]
    close = difflib.get_close_matches(name.upper(), there, n=1, cutoff=0.75)
    return f" (is {close[0]} meant?)" if close else ""


def _fields_of(kind: Any) -> list[str]:
    """The settings of a section; none of what is no section."""
    if get_origin(kind) is dict:
        kind = get_args(kind)[1]
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


_Model = TypeVar("_Model", bound=BaseModel)


def _anchored(model: _Model, directory: Path) -> _Model:
    updates: dict[str, object] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Path):
            updates[name] = directory / value
        elif isinstance(value, BaseModel):
            updates[name] = _anchored(value, directory)
        elif isinstance(value, dict):
            updates[name] = {
                key: _anchored(item, directory) if isinstance(item, BaseModel) else item
                for key, item in value.items()
            }
    return model.model_copy(update=updates)
