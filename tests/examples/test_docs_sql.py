"""The SQL in the documentation runs on the demo."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks() -> list[object]:
    return [
        pytest.param(block, id=f"{page}-{number}")
        for page in ("analyst.md", "bi.md")
        for number, block in enumerate(
            re.findall(
                r"^```sql\n(.*?)^```$",
                (DOCS / page).read_text(encoding="utf-8"),
                flags=re.MULTILINE | re.DOTALL,
            ),
            start=1,
        )
    ]


@pytest.mark.parametrize("block", blocks())
def test_block(demo, block: str):
    expected = re.match(r"-- SQLSTATE (\w{5})\n", block)
    with psycopg.connect(demo.dsn, autocommit=True) as connection:
        if expected is None:
            for statement in filter(None, map(str.strip, block.split(";"))):
                cursor = connection.execute(statement)
                assert cursor.statusmessage
        else:
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(block)
            assert caught.value.sqlstate == expected[1]
