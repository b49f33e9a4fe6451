"""``oar cert``: the commands. Their work is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oar_proxy.cert import MOST_DAYS, SERVER_DAYS, KeyKind

if TYPE_CHECKING:
    from oar_proxy.cert.authority import Made

cert = typer.Typer(no_args_is_help=True, help="Make the certificate that TLS needs.")

Directory = Annotated[Path, typer.Option("--dir", help="Where the files are.")]
Days = Annotated[
    int,
    typer.Option("--days", min=1, max=MOST_DAYS, help="How long the certificate is valid."),
]
HOSTS = "Names and addresses by which clients connect."


@cert.command("make")
def make(
    hosts: Annotated[list[str], typer.Argument(help=HOSTS)],
    directory: Directory = Path("oar-data/tls"),
    key: Annotated[
        KeyKind, typer.Option("--key", help="Of which kind the keys are.")
    ] = KeyKind.ecdsa,
    days: Days = SERVER_DAYS,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is there: clients must trust it anew.")
    ] = False,
) -> None:
    """Make a certificate authority and the proxy's certificate, and say how clients trust it."""
    from oar_proxy.cert import authority

    _print(authority.make(directory, hosts, key, days, replace=force))


@cert.command("renew")
def renew(
    hosts: Annotated[list[str] | None, typer.Argument(help=HOSTS)] = None,
    directory: Directory = Path("oar-data/tls"),
    key: Annotated[
        KeyKind | None, typer.Option("--key", help="Of which kind the key is. Default: as before.")
    ] = None,
    days: Days = SERVER_DAYS,
) -> None:
    """Make a new server certificate, for the same hosts by default, that clients trust already."""
    from oar_proxy.cert import authority

    _print(authority.renew(directory, hosts or (), key, days))


@cert.command("show")
def show(directory: Directory = Path("oar-data/tls")) -> None:
    """Print what the directory holds, and the commands by which clients trust it."""
    from oar_proxy.cert import authority

    _print(authority.read(directory))


def _print(made: Made) -> None:
    from oar_proxy.cert import instructions

    typer.echo(instructions.text(made), nl=False)
