"""Configuration: one YAML file, overridden by ``OAR_…`` environment variables.

Every field here has its heading in ``docs/operator.md``; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listen(_Section):
    """Where clients connect."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 6432
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    max_clients: Annotated[int, Field(ge=1)] = 100
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
    dsn: SecretStr | None = None
    database: str = "oar"
    max_connections: Annotated[int, Field(ge=10, le=10000)] = 200


class OwnerSettings(_Section):
    """One owner: where it is, the schema its tables are published in, its policy."""

    url: SecretStr
    published_schema: Annotated[str | None, Field(alias="schema")] = None
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


class Limits(_Section):
    """The proxy's own limits; an owner's policy can only be tighter."""

    max_rows: Annotated[int, Field(ge=1)] = 1_000_000
    """Rows one owner may send for one step."""
    max_bytes: Annotated[int, Field(ge=1)] = 512 * 1024 * 1024
    """Bytes all owners together may send for one statement."""
    max_keys: Annotated[int, Field(ge=1)] = 100_000
    """Keys one step may carry to an owner."""
    statement_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for the owners' part of a statement; the session's own statement_timeout binds too."""


class Settings(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        env_prefix="OAR_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    listen: Listen = Listen()
    hub: HubSettings = HubSettings()
    owners: dict[str, OwnerSettings] = {}
    drafter: DrafterSettings = DrafterSettings()
    limits: Limits = Limits()
    catalog_refresh: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two looks at the owners' schemas."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

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
    """Read the configuration file, then the environment.

    Relative paths in the file are relative to the file. Raises ``ConfigurationError``.
    """
    raise NotImplementedError
