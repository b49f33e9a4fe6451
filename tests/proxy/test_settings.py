from __future__ import annotations

from pathlib import Path

import pytest
from oar_proxy.settings import ConfigurationError, load, strangers

SECRET = "s3cret-that-must-not-show"


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "oar.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_defaults_without_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    settings = load(None)
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 6432)
    assert settings.owners == {}
    assert settings.hub.data_dir == tmp_path / "oar-data" / "hub"


def test_relative_paths_are_relative_to_the_file(config, tmp_path, monkeypatch):
    path = config(
        "hub: {data_dir: hub}\n"
        "owners: {a: {url: 'sqlite:a.db', policy: policies/a.yaml},"
        " b: {url: 'sqlite:b.db', policy: /etc/b.yaml, schema: shared}}\n"
    )
    monkeypatch.chdir("/")
    settings = load(path)
    assert settings.hub.data_dir == tmp_path / "hub"
    assert settings.owners["a"].policy == tmp_path / "policies/a.yaml"
    assert settings.owners["b"].policy == Path("/etc/b.yaml")
    assert settings.owners["b"].published_schema == "shared"
    assert settings.owners["a"].url.get_secret_value() == "sqlite:a.db"


def test_environment_wins_and_merges(config, monkeypatch):
    path = config("listen: {port: 7000, host: 0.0.0.0}\nowners: {a: {url: x, schema: s}}\n")
    monkeypatch.setenv("OAR_LISTEN__PORT", "7001")
    monkeypatch.setenv("OAR_OWNERS__A__URL", SECRET)
    monkeypatch.setenv("OAR_LOG_LEVEL", "debug")
    settings = load(path)
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", 7001)
    assert settings.owners["a"].url.get_secret_value() == SECRET
    assert settings.owners["a"].published_schema == "s"
    assert settings.log_level == "debug"
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"hub: {{dsn: 'nonsense {SECRET}'}}", "hub.dsn: this is not a PostgreSQL connection"),
        (f"hub: {{dsn: 'postgresql://x:{SECRET}@['}}", "hub.dsn: this is not a PostgreSQL"),
        ("listen: {prot: 1}", "listen.prot is not a setting (is port meant?)"),
        ("owner: {}", "owner is not a setting (is owners meant?)"),
        (f"listen: {{port: {SECRET}}}", "listen.port: input should be a valid integer"),
        (f"owners: {{a: {{url: x, policy: [{SECRET}]}}}}", "owners.a.policy: "),
        (f"owners: {{a: {{password: {SECRET}}}}}", "owners.a.url: field required"),
        (f"owners: {{a: {SECRET}}}", "owners.a: "),
        ("owners: {Ä: {url: x}}", "owners.Ä: a name has lower-case letters"),
        ("owners: {a: {url: x, schema: oar_plan}}", "owners.a.schema: this schema"),
        ("owners: {a: {url: x, schema: pg_x}}", "owners.a.schema: this schema"),
        ("drafter: {kind: litellm}", "drafter: drafter kind litellm needs a model"),
        ("drafter: {kind: replay}", "drafter: drafter kind replay needs a file"),
        ("questions: {protocol: relay}", "top level: a questions.protocol other than"),
        (
            "questions: {protocol: chain}",
            "questions.protocol: input should be 'compiled', 'fan-out'",
        ),
        (
            "questions: {budget: 511}",
            "questions.budget: input should be greater than or equal to 512",
        ),
        (f"listen: {{tls_key: {SECRET}}}", "listen: tls_certificate and tls_key"),
        ("owners: {a: {url: x, ploicy: y}}", "owners.a.ploicy is not a setting (is policy meant?)"),
        ("nonsense: {}", "nonsense is not a setting"),
        (
            f"owners: {{a: {{url: x, 'postgresql://u:{SECRET}@h/d': y}}}}",
            "owners.a.… is not a setting",
        ),
        (f"- {SECRET}", "is not a mapping of sections"),
        (f"1: {SECRET}", "is not a mapping of sections"),
        ("listen: {port: 1}\nlisten: {port: 2}", "YAML: line 2, column 1: key listen"),
        ("a: \t- b: 'x", "is not valid YAML: line 1, column 4: found character"),
        ("a: [b}", "is not valid YAML: line 1, column 6: cannot be read"),
        (f"a: !{SECRET}", "is not valid YAML: line 1, column 4: cannot be read"),
        (f"a: *{SECRET}", "is not valid YAML: line 1, column 4: cannot be read"),
        (f"a: !{SECRET}!x", "is not valid YAML: line 1, column 4: cannot be read"),
    ],
)
def test_faults_name_file_and_field_and_no_value(config, text: str, says: str):
    path = config(text)
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert says in caught.value.message
    assert str(path) in caught.value.message
    assert SECRET not in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no\.yaml cannot be read: No such file"):
        load(tmp_path / "no.yaml")


def test_a_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "oar.yaml"
    path.write_bytes("log_level: инфо".encode("cp1251"))
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        load(path)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OAR_LISTEN__PROT", "1", "listen.prot is not a setting"),
        ("OAR_HUB__DNS", SECRET, "hub.dns is not a setting (is dsn meant?)"),
        ("OAR_HUB__DSN", SECRET, "hub.dsn: this is not a PostgreSQL connection string"),
        ("OAR_OWNERS__A__POLCY", SECRET, "owners.a.polcy is not a setting (is policy meant?)"),
        (
            "OAR_LIMIT__MAX_ROWS",
            SECRET,
            "OAR_LIMIT__MAX_ROWS names no setting: no section limit (is OAR_LIMITS__MAX_ROWS meant?)",
        ),
        (
            "OAR_OWNER__A__URL",
            SECRET,
            "no section owner (is OAR_OWNERS__A__URL meant?)",
        ),
        ("OAR_LOG__LEVEL", SECRET, "no section log (is OAR_LOG_LEVEL meant?)"),
        ("OAR_LOG_LEVEL__X", SECRET, "no section log_level (is OAR_LOG_LEVEL meant?)"),
        ("OAR_LISTEN", SECRET, 'field "listen"'),
        ("OAR_LIMITS__MAX_ROWS", "0", "limits.max_rows: input should be greater than"),
    ],
)
def test_faults_in_the_environment(config, monkeypatch, name: str, value: str, says: str):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        load(config(""))
    assert says in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OAR_NONSENSE", None),
        ("OAR_ADMIN_PASSWORD", None),
        ("OAR_", None),
        ("OAR_HUB_DSN", "OAR_HUB__DSN"),
        ("OAR_LISTEN_PORT", "OAR_LISTEN__PORT"),
        ("OAR_LOGLEVEL", "OAR_LOG_LEVEL"),
        ("OAR_DRAFTER_API_KEY", "OAR_DRAFTER__API_KEY"),
        ("OAR_OWNERS_RETURNS_EAST_URL", "OAR_OWNERS__RETURNS_EAST__URL"),
        ("OAR_CONFG", "OAR_CONFIG"),
        ("oar_hub_dsn", "OAR_HUB__DSN"),
    ],
)
def test_a_variable_that_is_none_of_the_settings_is_told_of(monkeypatch, name, meant):
    monkeypatch.setenv(name, SECRET)
    load(None)
    told = [text for text in strangers() if f" {name} " in text]
    assert told == [
        f"environment variable {name} is not a setting" + (f" (is {meant} meant?)" if meant else "")
    ]


def test_variables_that_are_no_settings_and_no_mistake(monkeypatch):
    """Those of commands, and what Kubernetes tells of a service that is called oar."""
    before = strangers()
    for name in (
        *("OAR_CONFIG", "OAR_DSN", "OAR_LOG_FORMAT", "OAR_VERIFIED"),
        *("OAR_SERVICE_HOST", "OAR_SERVICE_PORT", "OAR_SERVICE_PORT_PG", "OAR_PORT"),
        *("OAR_PORT_6432_TCP", "OAR_PORT_6432_TCP_ADDR", "OAR_HUB_SERVICE_HOST", "OAR_HUB_PORT"),
    ):
        monkeypatch.setenv(name, SECRET)
    assert strangers() == before
