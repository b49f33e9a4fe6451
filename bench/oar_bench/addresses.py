"""How an owner's adapter reaches a database that libpq reaches."""

from __future__ import annotations

from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


def owner_url(conninfo: str) -> str:
    """Return the URL of a PostgreSQL owner for a connection string with a host and a user."""
    given = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(conninfo).items()}
    login = given["user"] + (f":{given['password']}" if "password" in given else "")
    port = f"&port={given['port']}" if "port" in given else ""
    return f"postgresql://{login}@/{given['dbname']}?host={given['host']}{port}"
