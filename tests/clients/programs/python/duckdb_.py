"""DuckDB's postgres extension, from its own package; row numbers of a federated table it has to do without."""

from __future__ import annotations

from importlib.resources import files

import duckdb
from common import BIG, CITY, COUNT, DATABASE, DAYS, FAILS, JOIN, SERVER, main, summed, told

place = files("duckdb_extension_postgres_scanner") / "extensions" / f"v{duckdb.__version__}"
engine = duckdb.connect(
    config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
)
engine.execute(f"LOAD '{place / 'postgres_scanner.duckdb_extension'}'")
engine.execute("SET pg_use_ctid_scan = false")
where = " ".join(f"{name}={value}" for name, value in SERVER.items())
engine.execute(f"ATTACH '{where} dbname={DATABASE}' AS oar (TYPE postgres, READ_ONLY)")
engine.execute("USE oar")


def connect():
    return told(
        engine.execute(
            "SELECT * FROM postgres_query('oar', 'SELECT version(), current_user::text')"
        ).fetchall()
    )


def introspect():
    found = engine.execute(
        "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns()"
        " WHERE database_name = 'oar' AND schema_name IN ('shop', 'fleet') ORDER BY ALL"
    ).fetchall()
    return told(found)


def parameters():
    # As text: for times with a zone the engine wants yet another package.
    shown = f"SELECT COLUMNS(*)::VARCHAR FROM ({JOIN})"
    return told(engine.execute(shown, (CITY, DAYS)).fetchall())


def big():
    return summed(engine.execute(BIG).fetchall())


def errors():
    seen = []
    for statement in (FAILS, "SELECT nonesuch FROM shop.orders"):
        quoted = statement.replace("'", "''")
        try:
            engine.execute(f"SELECT * FROM postgres_query('oar', '{quoted}')")
            seen.append("nothing failed")
        except duckdb.Error as error:
            seen.append(str(error).partition("ERROR:")[2].partition("\n")[0])
    return [*seen, engine.execute(COUNT).fetchall()]


main(connect=connect, introspect=introspect, parameters=parameters, big=big, errors=errors)
