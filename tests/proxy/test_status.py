"""With which status each command ends, and that what it says is told in its own words."""

from __future__ import annotations

import sys

import pytest
from oar_proxy.cli import main

SECRET = "s3cret"
SOMEWHERE = "host=/nowhere port=1 dbname=x"

FILES = {
    "reach.yaml": f"hub: {{dsn: '{SOMEWHERE}'}}\nverified: answers\n"
    "owners: {a: {url: 'sqlite:////nowhere/a.db'}}\n",
    "dsn.yaml": f"hub: {{dsn: 'nonsense {SECRET}'}}\nverified: answers\n"
    "owners: {a: {url: 'sqlite:////nowhere/a.db'}}\n",
    "setting.yaml": "nonsense: 1\n",
    "policy.yaml": f"hub: {{dsn: '{SOMEWHERE}'}}\n"
    "owners: {a: {url: 'sqlite:////nowhere/a.db', policy: p.yaml}}\n",
    "scheme.yaml": f"hub: {{dsn: '{SOMEWHERE}'}}\nowners: {{a: {{url: 'nosuch://{SECRET}'}}}}\n",
    "certificate.yaml": "listen: {tls_certificate: none.crt, tls_key: none.key}\n",
    "p.yaml": "version: 9\n",
    "answers/keep": "",
}

AT_A_HUB = [
    "serve",
    "user list",
    "user add bob --password-from PASSWORD",
    "user password bob --password-from PASSWORD",
    "user remove bob",
    "audit verify",
    "audit heads",
    "audit tail",
    "audit show 7d3d2a3e-6d6c-4a57-9c4d-2f1f6d6d0a10",
    "audit export",
    "audit prune --before 2020-01-01",
]
"""Commands that need the hub before anything else."""

WITH_A_CONFIGURATION = [
    *AT_A_HUB,
    "check",
    "catalog",
    "verify list",
    "verify check",
    "verify remove x",
    "verify add --question q --sql SELECT",
    "policy lint",
    "policy test",
    "policy explain SELECT",
    "policy diff p.yaml p.yaml",
    "ask x",
    "explain x",
]

CASES = [
    *((2, f"{command} --config none.yaml") for command in WITH_A_CONFIGURATION),
    *((2, f"{command} --config setting.yaml") for command in WITH_A_CONFIGURATION),
    *((2, f"{command} --config dsn.yaml") for command in WITH_A_CONFIGURATION),
    *((3, f"{command} --config reach.yaml") for command in AT_A_HUB),
    # What a check finds is its answer, and no failure of its own.
    *((1, f"{command} --config reach.yaml") for command in ("check", "catalog")),
    *((1, f"{command} --config policy.yaml") for command in ("check", "catalog", "policy lint")),
    *((1, f"{command} --config scheme.yaml") for command in ("check", "catalog")),
    *((2, f"{command} --config policy.yaml") for command in ("serve", "policy test")),
    *((2, f"{command} --config scheme.yaml") for command in ("serve", "policy test")),
    (2, "serve --config certificate.yaml"),
    (3, "policy test --config reach.yaml"),
    (3, "policy explain SELECT --config reach.yaml"),
    (3, "verify check --config reach.yaml"),
    (0, "policy schema"),
    (0, "policy lint --config reach.yaml"),
    (1, "verify remove x --config reach.yaml"),
    (1, "policy lint p.yaml"),
    (1, "policy lint none.yaml"),
    (1, "audit verify p.yaml"),
    (2, "policy lint"),
    (2, "policy test --config reach.yaml --catalog none.json"),
    (2, "policy test --config reach.yaml --catalog p.yaml"),
    (2, "policy diff --config policy.yaml p.yaml p.yaml"),
    (2, "audit verify"),
    (2, "audit verify none.jsonl"),
    (2, "audit verify --config reach.yaml --heads none.json"),
    (2, "audit verify --config reach.yaml --heads p.yaml"),
    (2, "audit show x --config reach.yaml"),
    (2, "audit prune --before yesterday --config reach.yaml"),
    (2, "user add bob --config reach.yaml --password-from NONE"),
    (2, "verify add --question q --config reach.yaml"),
    (2, "cert show --dir none"),
    (2, "cert renew --dir none"),
    (2, f"ask x --dsn nonsense-{SECRET}"),
    (3, "ask x --dsn host=/nowhere"),
    (3, "explain x --dsn host=/nowhere"),
    (2, "demo --port 99999"),
    (2, "nonsense"),
    (2, "bench nonsense"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("status")
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return directory


@pytest.mark.parametrize(("status", "command"), CASES, ids=[command for _, command in CASES])
def test_each_command_ends_with_the_status_that_is_documented(
    directory, monkeypatch, capfd, status, command
):
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PASSWORD", SECRET)
    monkeypatch.setattr(sys, "argv", ["oar", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capfd.readouterr()
    assert (ended.value.code or 0) == status, told
    assert SECRET not in told.out + told.err
    if status:
        assert any(word in told.err for word in ("oar: ", "Usage: "))
