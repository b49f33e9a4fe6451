"""What a client reads is what PostgreSQL would have sent: the same frames to both, compared.

Through the proxy the statements read ``pub.orders``, which is federated; directly at the hub they
read an ordinary table with the same rows.
"""

from __future__ import annotations

import random
import struct

import pytest
from frames import (
    FLUSH,
    SYNC,
    Raw,
    binary,
    bind,
    bind_formats,
    close,
    describe,
    execute,
    frame,
    parse,
    play,
    query,
    run,
    text,
)
from oar_proxy.federation import Parameter

PI = 1610
"""Number of the function pi()."""


ALL = "SELECT * FROM {t} ORDER BY id"
SOME = "SELECT * FROM {t} WHERE id > $1 ORDER BY id"

SEQUENCES = {
    "simple": [query(ALL)],
    "simple, empty": [query(""), query(";"), query("-- {t}")],
    "simple, comment with a published name": [query("SELECT 1 /* {t} */")],
    "simple, second of a batch": [query("SELECT 1; " + ALL)],
    "simple, first of a batch": [query(ALL + "; SELECT 2; SELECT 3")],
    "simple, twice in a batch": [query(f"{ALL}; {ALL}")],
    "simple, begin and statement at once": [
        query("BEGIN; " + ALL),
        query(ALL),
        query("COMMIT"),
    ],
    "simple, whole transaction at once": [query(f"BEGIN; {ALL}; COMMIT; SELECT 1")],
    "simple, a statement of the batch fails": [query(f"SELECT 1; {ALL}; SELECT 1/0; SELECT 2")],
    "simple, fails before ours": [query(f"SELECT 1/0; {ALL}"), query("SELECT 1")],
    "simple, ours fails at the hub": [query("SELECT 10 / (id - 1) FROM {t} ORDER BY id")],
    "simple, in a failed transaction": [
        query("BEGIN"),
        query("SELECT 1/0"),
        query(ALL),
        query("ROLLBACK; " + ALL),
    ],
    "simple, rolled back in the batch": [query(f"BEGIN; {ALL}; ROLLBACK; {ALL}")],
    "simple, syntax error": [query(f"{ALL}; SELECT FROM WHERE /* SYNTAX */")],
    "simple, isolation level set behind": [
        query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; " + ALL),
        query(ALL),
        query("ROLLBACK"),
    ],
    "simple, isolation level with a published name": [
        query("BEGIN"),
        query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE -- {t}"),
        query("ROLLBACK"),
    ],
    "simple, cursor": [
        query(f"BEGIN; DECLARE c CURSOR FOR {ALL}; FETCH 2 FROM c; FETCH 2 FROM c; COMMIT")
    ],
    "simple, explain is not ours": [query("SELECT count(*) FROM {t}")],
    "simple destroys the unnamed statement": [
        parse("SELECT 7") + SYNC,
        query(ALL),
        bind() + execute() + SYNC,
    ],
    "extended": [run(ALL) + SYNC],
    "extended, described": [
        parse(SOME) + describe(b"S") + bind(values=[text(2)]) + describe(b"P") + execute() + SYNC
    ],
    "extended, flushed": [
        (parse(SOME, b"s") + describe(b"S", b"s") + FLUSH, "T", 1),
        (bind(b"", b"s", [text(4)]) + execute() + FLUSH, "C", 1),
        SYNC,
    ],
    "extended, binary parameter and results": [
        parse("SELECT id, name FROM {t} WHERE id > $1", oids=[23])
        + bind(values=[binary(3)], results=[1])
        + execute()
        + SYNC
    ],
    "extended, one format for two parameters": [
        parse("SELECT id FROM {t} WHERE id > $1 AND id < $2 ORDER BY 1", oids=[23, 23])
        + frame(
            b"B",
            b"\0\0" + struct.pack("!HHHIiIiH", 1, 1, 2, 4, 1, 4, 4, 0),
        )
        + execute()
        + SYNC
    ],
    "extended, NULL parameter": [
        parse(SOME) + bind(values=[Parameter(0, 0, None)]) + execute() + SYNC
    ],
    "extended, wrong parameter": [
        parse(SOME) + bind(values=[text("x")]) + execute() + SYNC,
        query("SELECT 1"),
    ],
    "extended, missing parameter": [parse(SOME) + bind() + execute() + SYNC],
    "extended, unknown column": [run("SELECT nonesuch FROM {t}") + SYNC],
    "extended, two in a pipeline": [run(ALL) + run(SOME, text(3)) + run("SELECT 1") + SYNC],
    "extended, pipeline with syncs": [(run(ALL) + SYNC + run("SELECT 1") + SYNC, "Z", 2)],
    "extended, error before ours": [run("SELECT 1/0") + run(ALL) + SYNC, run(ALL) + SYNC],
    "extended, parse error before ours": [parse("SELEC") + run(ALL) + SYNC],
    "extended, error behind ours": [run(ALL) + run("SELECT 1/0") + run(ALL) + SYNC],
    "extended, ours fails": [
        run("SELECT 10 / (id - 1) FROM {t}") + run("SELECT 1") + SYNC,
        run("SELECT 1") + SYNC,
    ],
    "extended, in a transaction": [
        query("BEGIN"),
        run(ALL) + SYNC,
        run("SELECT 10 / (id - 1) FROM {t}") + SYNC,
        run(ALL) + SYNC,
        query("ROLLBACK"),
        run(ALL) + SYNC,
    ],
    "extended, query while skipping": [
        parse("SELEC") + query(ALL) + query("SELECT 2") + SYNC,
        query(ALL),
    ],
    "extended, query inside a pipeline": [run("SELECT 1") + query(ALL), run(ALL) + SYNC],
    # What is executed without a Sync leaves a transaction open, what is only parsed does not.
    "extended, query behind what is parsed only": [
        (parse("SELECT 7", b"s") + describe(b"S", b"s") + FLUSH, "T", 1),
        query(ALL),
        query("CREATE TEMP TABLE tt (a int)"),
        query("SELECT 1/0"),
        query(ALL),
        (bind(b"", b"s") + execute() + FLUSH, "C", 1),
        SYNC,
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
    ],
    "extended, queries behind what is executed": [
        (run("SELECT 1") + FLUSH, "C", 1),
        query("CREATE TEMP TABLE tt (a int)"),
        query(ALL),
        query("SELECT 1/0"),
        query("SELECT 'tt'::regclass"),
        query(ALL),
        query("CREATE TEMP TABLE tt (a int)"),
        query("SELECT 1/0"),
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
        SYNC,
    ],
    "extended, batch behind what is executed": [
        (run("SELECT 1") + FLUSH, "C", 1),
        query(f"CREATE TEMP TABLE tt (a int); {ALL}"),
        query(ALL),
        query("SELECT 1/0"),
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
        SYNC,
    ],
    "simple, what the hub logs of others in the batch": [
        query("SET client_min_messages TO debug1"),
        query(f"CREATE TEMP TABLE tt (a serial); {ALL}"),
        query("DROP TABLE tt; RESET client_min_messages"),
    ],
    "extended, named statement twice": [
        parse(SOME, b"s") + bind(b"", b"s", [text(4)]) + execute() + SYNC,
        bind(b"", b"s", [text(3)]) + execute() + SYNC,
        parse(ALL, b"s") + SYNC,
        bind(b"", b"s", [text(2)]) + execute() + SYNC,
    ],
    "extended, name of ours taken by another": [
        parse(ALL, b"s") + SYNC,
        close(b"S", b"s") + parse("SELECT 5", b"s") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, name of another taken by ours": [
        parse("SELECT 5", b"s") + SYNC,
        close(b"S", b"s") + parse(ALL, b"s") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, unnamed ours then unnamed other": [
        run(ALL) + SYNC,
        parse("SELECT 5") + SYNC,
        bind() + execute() + SYNC,
    ],
    "extended, unnamed other fails to parse": [
        run(ALL) + SYNC,
        parse("SELEC") + SYNC,
        bind() + execute() + SYNC,
    ],
    "extended, deallocated and prepared again by SQL": [
        parse(ALL, b"s") + SYNC,
        query("DEALLOCATE s"),
        query("PREPARE s AS SELECT 6"),
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, deallocated in the same pipeline": [
        parse(ALL, b"s") + run("DEALLOCATE ALL") + bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, discarded": [
        parse(ALL, b"s") + SYNC,
        query("DISCARD ALL"),
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, portal closed and declared again by SQL": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + SYNC,
        query("CLOSE p"),
        query("DECLARE p CURSOR FOR SELECT 8"),
        execute(b"p") + SYNC,
        query("ROLLBACK"),
    ],
    "extended, portal kept by a savepoint": [
        query("BEGIN"),
        parse(SOME, b"s") + bind(b"p", b"s", [text(4)]) + SYNC,
        query("SAVEPOINT one"),
        bind(b"p", b"s", [text(1)]) + SYNC,
        query("ROLLBACK TO one"),
        execute(b"p") + SYNC,
        query("ROLLBACK"),
    ],
    "extended, portal gone with its transaction": [
        parse(ALL) + bind() + SYNC,
        execute() + SYNC,
    ],
    "extended, portal gone with COMMIT in the pipeline": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + run("COMMIT") + execute(b"p") + SYNC,
    ],
    "extended, portal closed": [parse(ALL) + bind(b"p") + close(b"P", b"p") + execute(b"p") + SYNC],
    "extended, executed twice": [parse(ALL) + bind() + execute() + execute() + SYNC],
    "extended, suspended and resumed": [
        query("BEGIN"),
        (parse(ALL) + bind(b"p") + execute(b"p", 2) + FLUSH, "s", 1),
        (run("SELECT 1") + FLUSH, "C", 1),
        (execute(b"p", 2) + FLUSH, "s", 1),
        execute(b"p", 2) + SYNC,
        query("COMMIT"),
    ],
    "extended, several statements in one string": [run(f"SELECT 1; {ALL}") + SYNC],
    "extended, empty": [run("") + SYNC, run("-- {t}") + SYNC],
    "extended, close of what never was": [close(b"S", b"none") + SYNC],
    "extended, malformed bind": [
        parse(ALL) + frame(b"B", b"\0\0\0\7") + execute() + SYNC,
        query("SELECT 1"),
    ],
    "extended, malformed describe": [frame(b"D", b"Xp\0") + SYNC],
    "copy in a batch": [
        (query(f"CREATE TEMP TABLE tt (a int); {ALL}; COPY tt FROM STDIN; {ALL}"), "G", 1),
        frame(b"d", b"1\n2\n") + frame(b"c", b""),
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
    ],
    "copy in a batch, refused by the hub in the middle of a row": [
        (query(f"CREATE TEMP TABLE tt (a int); COPY tt FROM STDIN; {ALL}"), "G", 1),
        frame(b"d", b"x\n") + frame(b"d", b"1\n" * 1_500_000) + frame(b"c", b""),
        query("SELECT 1"),
    ],
    "copy in a batch, refused by the client": [
        (query(f"CREATE TEMP TABLE tt (a int); COPY tt FROM STDIN; {ALL}"), "G", 1),
        frame(b"f", b"no\0"),
    ],
    # --- the pipeline and its errors
    "pipeline, the second of four fails": [
        run(ALL) + run("SELECT 1/0") + run(ALL) + run("SELECT 3") + SYNC,
        run(ALL) + SYNC,
    ],
    "pipeline, ours fails in the middle of it": [
        run("SELECT 1") + run("SELECT 10 / (id - 1) FROM {t}") + run("SELECT 2") + SYNC,
        query("SELECT 1"),
    ],
    "pipeline, each statement with its own sync": [
        ((run(ALL) + SYNC) * 3 + (run("SELECT 1") + SYNC) * 3, "Z", 6)
    ],
    "pipeline, syncs around an error": [
        (run("SELECT 1/0") + SYNC + run(ALL) + SYNC + SYNC, "Z", 3)
    ],
    "pipeline, an error comes at once": [(run("SELECT 1/0"), "E", 1), SYNC],
    "pipeline, an error of ours comes at once": [
        (run("SELECT 10 / (id - 1) FROM {t}"), "E", 1),
        SYNC,
    ],
    "pipeline, an error at parse comes at once": [
        (parse("SELECT nonesuch FROM {t}"), "E", 1),
        SYNC,
    ],
    "pipeline, flush and sync": [run(ALL) + FLUSH + SYNC, FLUSH + SYNC],
    "pipeline, flush after every message": [
        (parse(SOME) + FLUSH, "1", 1),
        (describe(b"S") + FLUSH, "T", 1),
        (bind(values=[text(3)]) + FLUSH, "2", 1),
        (describe(b"P") + FLUSH, "T", 1),
        (execute() + FLUSH, "C", 1),
        SYNC,
    ],
    "pipeline, replies in the order of requests": [
        (parse(ALL) + bind() + describe(b"P") + execute())
        + (parse("SELECT 2") + bind() + describe(b"P") + execute())
        + (parse(SOME) + bind(values=[text(4)]) + describe(b"P") + execute())
        + SYNC,
    ],
    "pipeline, one implicit transaction": [
        query("CREATE TEMP TABLE tt (a int)"),
        run("INSERT INTO tt VALUES (1)") + run(ALL) + run("SELECT 1/0") + SYNC,
        run("INSERT INTO tt VALUES (2)") + run(ALL) + SYNC,
        query("SELECT a FROM tt"),
    ],
    "pipeline, ours writes in it": [
        query("CREATE TEMP TABLE tt (a int)"),
        run("INSERT INTO tt SELECT id FROM {t}") + run("SELECT 1/0") + SYNC,
        run("INSERT INTO tt SELECT id FROM {t}") + SYNC,
        query("SELECT count(*) FROM tt"),
    ],
    "pipeline, queries while skipping are not answered": [
        (
            parse("SELEC")
            + query(ALL)
            + query("")
            + frame(b"F", struct.pack("!IHHH", PI, 0, 0, 0))
            + FLUSH
            + SYNC,
            "Z",
            1,
        ),
        query(ALL),
    ],
    "pipeline, all kinds of messages while skipping": [
        parse(SOME, b"s") + SYNC,
        parse("SELEC")
        + bind(b"p", b"s", [text(1)])
        + describe(b"P", b"p")
        + execute(b"p")
        + close(b"S", b"s")
        + SYNC,
        bind(b"", b"s", [text(4)]) + execute() + SYNC,
    ],
    "pipeline, a transaction in it": [
        run("BEGIN") + run(ALL) + run("COMMIT") + SYNC,
        run("BEGIN") + run("SELECT 1/0") + run("ROLLBACK") + SYNC,
        run("ROLLBACK") + SYNC,
    ],
    "pipeline, a failed transaction is rolled back in the next": [
        run("BEGIN") + run("SELECT 10 / (id - 1) FROM {t}") + SYNC,
        run(ALL) + SYNC,
        run("ROLLBACK") + run(ALL) + SYNC,
    ],
    "pipeline, simple queries between": [
        (run(ALL) + SYNC + query(ALL) + run("SELECT 1") + SYNC, "Z", 3)
    ],
    "pipeline, a function call in it": [
        (run("SELECT 1") + frame(b"F", struct.pack("!IHHH", PI, 0, 0, 0)) + run(ALL) + SYNC, "Z", 2)
    ],
    # --- statements and portals
    "unnamed statement of ours destroyed by a failing parse": [
        parse(ALL) + SYNC,
        parse("SELECT nonesuch FROM {t}") + SYNC,
        bind() + execute() + SYNC,
    ],
    "unnamed statement destroyed by a failing parse of nothing": [
        parse("SELECT 7") + SYNC,
        parse("SELECT FROM WHERE") + SYNC,
        bind() + execute() + SYNC,
        parse("") + SYNC,
        bind() + execute() + SYNC,
    ],
    "a name that is taken": [
        parse(ALL, b"s") + parse(ALL, b"s") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
    ],
    "a name that another took": [
        parse("SELECT 1", b"s") + parse(ALL, b"s") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
    ],
    "a portal's name that is taken": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + bind(b"p") + SYNC,
        query("ROLLBACK"),
        query("BEGIN"),
        parse(ALL) + bind(b"p") + parse("SELECT 1") + bind(b"p") + execute(b"p") + SYNC,
        query("ROLLBACK"),
    ],
    "a cursor's name that is taken": [
        query("BEGIN; DECLARE c CURSOR FOR SELECT 1"),
        parse(ALL) + bind(b"c") + SYNC,
        query("ROLLBACK"),
    ],
    "close of what failed to parse": [
        parse("SELEC", b"s") + SYNC,
        close(b"S", b"s") + close(b"P", b"s") + SYNC,
    ],
    "close of what failed to parse, of ours": [
        parse("SELECT nonesuch FROM {t}", b"s") + SYNC,
        close(b"S", b"s") + SYNC,
    ],
    "close twice": [
        parse(ALL, b"s")
        + bind(b"p", b"s")
        + close(b"P", b"p")
        + close(b"P", b"p")
        + close(b"S", b"s")
        + close(b"S", b"s")
        + SYNC
    ],
    "close of the statement leaves the portal": [
        parse(SOME, b"s") + bind(b"p", b"s", [text(3)]) + close(b"S", b"s") + execute(b"p") + SYNC
    ],
    "bind of what is not there": [
        bind(b"", b"none") + execute() + SYNC,
        describe(b"S", b"none") + SYNC,
        describe(b"P", b"none") + SYNC,
        execute(b"none") + SYNC,
    ],
    "described before it is bound": [
        (parse(SOME, b"s") + describe(b"S", b"s") + FLUSH, "T", 1),
        SYNC,
        (describe(b"S", b"s") + FLUSH, "T", 1),
        bind(b"", b"s", [text(2)], results=[1]) + describe(b"P") + execute() + SYNC,
    ],
    "described, and nothing comes of it": [
        query("CREATE TEMP TABLE tt (a int)"),
        parse("INSERT INTO tt SELECT id FROM {t} WHERE id > $1")
        + describe(b"S")
        + bind(values=[text(1)])
        + describe(b"P")
        + execute()
        + SYNC,
        parse("INSERT INTO tt SELECT id FROM {t} RETURNING a + 1 AS b")
        + describe(b"S")
        + bind()
        + describe(b"P")
        + execute()
        + SYNC,
        parse("BEGIN") + describe(b"S") + bind() + describe(b"P") + execute() + SYNC,
        parse("DECLARE c CURSOR FOR SELECT * FROM {t}")
        + describe(b"S")
        + bind()
        + describe(b"P")
        + execute()
        + SYNC,
        parse("FETCH 2 FROM c") + describe(b"S") + bind() + describe(b"P") + execute() + SYNC,
        query("COMMIT"),
    ],
    "described and executed twice": [
        parse(SOME, b"s")
        + describe(b"S", b"s")
        + bind(b"", b"s", [text(4)])
        + execute()
        + bind(b"", b"s", [text(3)])
        + describe(b"P")
        + execute()
        + SYNC,
    ],
    "types that the client declares": [
        parse("SELECT $1::text, id FROM {t} WHERE id = $2 OR $3", oids=[25, 20, 16])
        + describe(b"S")
        + bind(values=[text("é"), binary(2, 20), text("f")])
        + describe(b"P")
        + execute()
        + SYNC,
    ],
    "a type that is only declared for the second": [
        parse("SELECT id + $1 FROM {t} WHERE id > $2", oids=[0, 20])
        + describe(b"S")
        + bind(values=[text(1), text(3)])
        + execute()
        + SYNC
    ],
    "a parameter whose type nobody knows": [
        parse("SELECT $1 FROM {t} WHERE id = 1")
        + describe(b"S")
        + bind(values=[text("a")])
        + execute()
        + SYNC
    ],
    "a parameter that is not used": [parse("SELECT $2::int FROM {t}") + describe(b"S") + SYNC],
    # --- format codes
    **{
        f"parameter formats: {formats}": [
            parse("SELECT id FROM {t} WHERE id > $1 AND name <> $2 ORDER BY 1", oids=[23, 25])
            + bind_formats(
                formats, [struct.pack("!i", 1) if (formats * 2)[:1] == [1] else b"1", b"name 4"]
            )
            + describe(b"P")
            + execute()
            + SYNC,
        ]
        for formats in ([], [0], [1], [0, 0], [1, 0], [1, 1], [0, 1], [1, 1, 1], [2], [0, 7])
    },
    **{
        f"result formats: {formats}": [
            parse("SELECT id, name, id * 1.5 AS n FROM {t} ORDER BY 1")
            + bind(results=formats)
            + describe(b"P")
            + execute()
            + SYNC,
        ]
        for formats in ([], [0], [1], [0, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1], [0, 0, 0, 0], [3])
    },
    "more values than parameters": [
        parse(SOME) + bind(values=[text(1), text(2)]) + execute() + SYNC
    ],
    "a value that lies about its length": [
        parse(SOME) + frame(b"B", b"\0\0\0\0\0\1\0\0\0\x09" + b"1" + b"\0\0") + execute() + SYNC
    ],
    "a value of negative length": [
        parse(SOME) + frame(b"B", b"\0\0\0\0\0\1\xff\xff\xff\xfe\0\0") + execute() + SYNC
    ],
    "a value that is not text": [
        parse("SELECT * FROM {t} WHERE name = $1")
        + bind(values=[Parameter(0, 0, b"\xff\xfe")])
        + execute()
        + SYNC
    ],
    # --- bodies that lie
    "parse without an end": [
        frame(b"P", b"s\0SELECT 1") + SYNC,
        frame(b"P", b"s\0SELECT * FROM {t}") + SYNC,
    ],
    "parse with more behind": [
        frame(b"P", b"\0SELECT 1\0\0\0xx") + SYNC,
        frame(b"P", b"\0SELECT * FROM {t}\0\0\0xx") + SYNC,
    ],
    "parse with fewer types than it says": [
        frame(b"P", b"\0SELECT * FROM {t}\0\0\2\0\0\0\x17") + SYNC
    ],
    "query without an end": [frame(b"Q", b"SELECT 1"), frame(b"Q", b"")],
    "query without an end, of ours": [
        frame(b"Q", b"SELECT * FROM {t} "),
        frame(b"Q", b"SELECT * FROM {t}\0 "),
    ],
    "query with more behind": [
        frame(b"Q", b"SELECT 1\0\0"),
        frame(b"Q", b"SELECT 1\0SELECT * FROM {t}\0"),
    ],
    "execute without an end": [parse(ALL) + bind() + frame(b"E", b"\0\0\0") + SYNC],
    "execute of a name without an end": [parse(ALL) + bind(b"p") + frame(b"E", b"p") + SYNC],
    "execute with more behind": [parse(ALL) + bind() + frame(b"E", b"\0\0\0\0\0\0") + SYNC],
    "a negative number of rows": [parse(ALL) + bind() + frame(b"E", b"\0\xff\xff\xff\xff") + SYNC],
    "describe of nothing": [frame(b"D") + SYNC, run(ALL) + SYNC],
    "close of nothing": [frame(b"C") + SYNC, frame(b"C", b"X\0") + SYNC, run(ALL) + SYNC],
    "flush with a body": [(frame(b"H", b"x"), "E", 1), run(ALL) + SYNC, run(ALL) + SYNC],
    "sync with a body": [(frame(b"S", b"x"), "Z", 1), run(ALL) + SYNC],
    "function call without an end": [frame(b"F", b"\0\0"), query(ALL)],
    # --- query strings
    "simple, nothing between": [
        query(";;"),
        query("SELECT 1;"),
        query("SELECT 1;;SELECT 2"),
        query("/* c */"),
        query("/* {t} */"),
        query("-- c\n;"),
    ],
    "simple, nothing around ours": [
        query(f"{ALL};"),
        query(f";{ALL};;"),
        query(f"/* a */ {ALL} /* b */"),
    ],
    **{
        f"simple, ours is {place} and {fails} fails": [
            query("CREATE TEMP TABLE tt (a int)"),
            query("; ".join(parts)),
            query("SELECT a FROM tt"),
            query(ALL),
        ]
        for place, parts, fails in (
            ("first", [ALL, "INSERT INTO tt VALUES (1)", "SELECT 2"], "none"),
            ("first", [ALL, "INSERT INTO tt VALUES (1)", "SELECT 1/0", "SELECT 2"], "the third"),
            ("first", ["SELECT 10 / (id - 1) FROM {t}", "INSERT INTO tt VALUES (1)"], "it"),
            ("in the middle", ["INSERT INTO tt VALUES (1)", ALL, "SELECT 2"], "none"),
            (
                "in the middle",
                ["INSERT INTO tt VALUES (1)", "SELECT 10 / (id - 1) FROM {t}", "SELECT 2"],
                "it",
            ),
            (
                "in the middle",
                ["INSERT INTO tt VALUES (1)", "SELECT nonesuch FROM {t}", "SELECT 2"],
                "its analysis",
            ),
            ("in the middle", ["INSERT INTO nonesuch VALUES (1)", ALL, "SELECT 2"], "the first"),
            ("last", ["INSERT INTO tt VALUES (1)", "SELECT 2", ALL], "none"),
            (
                "last",
                ["INSERT INTO tt VALUES (1)", "SELECT 2", "SELECT 10 / (id - 1) FROM {t}"],
                "it",
            ),
            (
                "last",
                [
                    "INSERT INTO tt VALUES (1)",
                    "COMMIT",
                    "INSERT INTO tt VALUES (2)",
                    "SELECT 10 / (id - 1) FROM {t}",
                ],
                "it after COMMIT",
            ),
        )
    },
    "simple, begin and ours at once, as drivers without autocommit do": [
        query(f"BEGIN;{ALL}"),
        query(f"SAVEPOINT x;{ALL};RELEASE x"),
        query("SELECT nonesuch FROM {t}"),
        query("ROLLBACK"),
    ],
    "simple, begin twice": [
        query(f"BEGIN; BEGIN; {ALL}"),
        query("COMMIT; COMMIT"),
        query(f"COMMIT; {ALL}"),
    ],
    "simple, a transaction over several strings": [
        query(f"BEGIN; {ALL}; SELECT 1/0; {ALL}"),
        query(f"SELECT 1; {ALL}"),
        query(f"ROLLBACK; {ALL}; BEGIN"),
        query("COMMIT"),
    ],
    "simple, what may not stand in a transaction": [
        query(f"{ALL}; DISCARD ALL"),
        query(f"DISCARD ALL; {ALL}"),
        query(f"{ALL}; VACUUM"),
        query(f"VACUUM; {ALL}"),
        query(f"{ALL}; COMMIT; VACUUM"),
        query(f"{ALL}; ROLLBACK; VACUUM; {ALL}"),
        query(f"BEGIN; {ALL}; COMMIT; VACUUM"),
        query("BEGIN"),
        query(f"COMMIT; VACUUM; {ALL}"),
        query(f"{ALL}; COMMIT; SAVEPOINT x; {ALL}"),
        query(f"{ALL}; CREATE DATABASE x"),
    ],
    "simple, two settings at once": [
        query(f"SET application_name TO 'a'; SET DateStyle TO 'ISO, DMY'; {ALL}; SHOW DateStyle"),
        query("RESET ALL"),
    ],
    "simple, a setting that stays what it was": [
        query("SET application_name TO 'b'"),
        query(f"SET application_name TO 'b'; {ALL}"),
    ],
    "simple, settings of one transaction": [
        query(f"BEGIN; SET LOCAL TimeZone TO 'Asia/Tokyo'; {ALL}; COMMIT"),
        query(f"BEGIN; SET TimeZone TO 'Asia/Tokyo'; {ALL}; ROLLBACK"),
    ],
    "simple, warnings and notices in a batch": [
        query(
            f"SET client_min_messages TO debug1; {ALL}; DO $$ BEGIN RAISE NOTICE 'n' @ END $$".replace(
                "@", ""
            )
        ),
        query(f"ROLLBACK; {ALL}; COMMIT"),
    ],
    "simple, cursors with hold": [
        query(f"DECLARE c CURSOR WITH HOLD FOR {ALL}"),
        query("FETCH 2 FROM c; FETCH 2 FROM c"),
        query("MOVE 1 FROM c; FETCH 1 FROM c; CLOSE c"),
        query("FETCH 1 FROM c"),
    ],
    "simple, a binary cursor": [
        query(f"BEGIN; DECLARE c BINARY CURSOR FOR {ALL}; FETCH 2 FROM c"),
        run("FETCH 2 FROM c") + SYNC,
        query("CLOSE c; COMMIT"),
    ],
    "simple, a scroll cursor": [
        query(
            f"BEGIN; DECLARE c SCROLL CURSOR FOR {ALL}; FETCH LAST FROM c; FETCH BACKWARD 2 FROM c; FETCH ABSOLUTE 1 FROM c; MOVE ALL FROM c; CLOSE ALL; COMMIT"
        )
    ],
    "simple, a cursor without a transaction": [
        query(f"DECLARE c CURSOR FOR {ALL}"),
        query("SELECT 1"),
    ],
    "simple, a query ends the portals of the pipeline": [
        parse(ALL) + bind(b"p") + FLUSH + query("SELECT 1"),
        execute(b"p") + SYNC,
    ],
    "simple, text that is not text": [
        frame(b"Q", b"SELECT '\xff' FROM {t}\0"),
        frame(b"Q", b"SELECT * FROM {t} -- \xff\0"),
        query(ALL),
    ],
    # --- what pools send
    "pools, reset by four statements": [
        parse(ALL, b"s") + SYNC,
        query("SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;"),
        bind(b"", b"s") + execute() + SYNC,
    ],
    "pools, the reset stands before the next statement": [
        (query("DISCARD ALL") + run(ALL) + SYNC, "Z", 2),
        (query("DISCARD ALL") + query(ALL), "Z", 2),
    ],
    "pools, discard all, extended": [
        parse(ALL, b"s") + SYNC,
        run("DISCARD ALL") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
        parse(ALL, b"s") + bind(b"", b"s") + execute() + SYNC,
    ],
    "pools, discard all in a pipeline": [run("SELECT 1") + run("DISCARD ALL") + SYNC],
    "pools, discard plans": [
        parse(ALL, b"s") + SYNC,
        run("DISCARD PLANS") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
    ],
    "pools, deallocate all, extended": [
        parse(ALL, b"s") + parse("SELECT 1", b"o") + SYNC,
        run("DEALLOCATE ALL") + SYNC,
        bind(b"", b"s") + SYNC,
        bind(b"", b"o") + SYNC,
        parse(ALL, b"s") + bind(b"", b"s") + execute() + SYNC,
    ],
    "pools, deallocate of one of ours": [
        parse(ALL, b"s") + SYNC,
        run("DEALLOCATE s") + SYNC,
        bind(b"", b"s") + SYNC,
        close(b"S", b"s") + SYNC,
    ],
    "pools, close all, extended": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + SYNC,
        run("CLOSE ALL") + SYNC,
        execute(b"p") + SYNC,
        query("ROLLBACK"),
    ],
    "pools, close all in the pipeline": [
        query("BEGIN"),
        parse(ALL)
        + bind(b"p")
        + parse("CLOSE ALL", b"c")
        + bind(b"", b"c")
        + execute()
        + execute(b"p")
        + SYNC,
        query("ROLLBACK"),
    ],
    "pools, a portal closed by SQL": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + SYNC,
        query("CLOSE p"),
        execute(b"p") + SYNC,
        query("ROLLBACK"),
    ],
    "pools, a rollback of what is no transaction": [
        query("ROLLBACK"),
        run("ROLLBACK") + SYNC,
        run(ALL) + SYNC,
    ],
    # --- portals
    "portals, two of ours take turns": [
        query("BEGIN"),
        (
            parse(ALL)
            + bind(b"p")
            + parse(SOME)
            + bind(b"q", values=[text(2)])
            + execute(b"p", 2)
            + execute(b"q", 1)
            + FLUSH,
            "s",
            2,
        ),
        (execute(b"p", 2) + execute(b"q", 5) + execute(b"p", 0) + FLUSH, "C", 2),
        execute(b"p", 1) + execute(b"q", 1) + SYNC,
        query("COMMIT"),
    ],
    "portals, suspended outside a transaction": [
        parse(ALL) + bind() + execute(b"", 2) + SYNC,
        execute(b"", 2) + SYNC,
    ],
    "portals, suspended and another statement parsed": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + execute(b"p", 2) + SYNC,
        run("SELECT 1") + SYNC,
        query("SELECT 2"),
        execute(b"p", 2) + SYNC,
        close(b"P", b"p") + SYNC,
        execute(b"p", 2) + SYNC,
        query("ROLLBACK"),
    ],
    "portals, exactly as many rows as there are": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + execute(b"p", 5) + execute(b"p", 5) + execute(b"p", 5) + SYNC,
        query("COMMIT"),
    ],
    "portals, described while suspended": [
        query("BEGIN"),
        parse(ALL)
        + bind(b"p", results=[1])
        + execute(b"p", 2)
        + describe(b"P", b"p")
        + execute(b"p", 2)
        + SYNC,
        query("COMMIT"),
    ],
    "portals, an error suspends nothing": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + execute(b"p", 2) + run("SELECT 1/0") + SYNC,
        execute(b"p", 2) + SYNC,
        query("ROLLBACK"),
    ],
    "portals, a savepoint goes with its portals": [
        query("BEGIN; SAVEPOINT a"),
        parse(ALL) + bind(b"p") + execute(b"p", 2) + SYNC,
        query("ROLLBACK TO a"),
        execute(b"p", 2) + SYNC,
        query("ROLLBACK"),
    ],
    "portals, rows of a statement that writes": [
        query("CREATE TEMP TABLE tt (a int)"),
        query("BEGIN"),
        parse("INSERT INTO tt SELECT id FROM {t} RETURNING a")
        + bind(b"p")
        + execute(b"p", 2)
        + execute(b"p", 2)
        + SYNC,
        query("COMMIT; SELECT count(*) FROM tt"),
    ],
    # --- results that change
    "a plan whose result changed": [
        query("CREATE TEMP TABLE tt AS SELECT 1 AS a"),
        parse("SELECT * FROM tt", b"s") + describe(b"S", b"s") + SYNC,
        query("ALTER TABLE tt ADD b int"),
        bind(b"", b"s") + execute() + SYNC,
        query("SELECT * FROM tt"),
    ],
    "a plan of ours whose result changed": [
        query("CREATE TEMP TABLE tt AS SELECT 1 AS a"),
        parse("SELECT tt.*, o.id FROM tt, {t} o ORDER BY id", b"s") + describe(b"S", b"s") + SYNC,
        query("ALTER TABLE tt ADD b int"),
        bind(b"", b"s") + execute() + SYNC,
        query("SELECT * FROM tt"),
    ],
    "a plan of ours whose result changed in the pipeline": [
        query("CREATE TEMP TABLE tt AS SELECT 1 AS a"),
        parse("SELECT tt.*, o.id FROM tt, {t} o ORDER BY id", b"s")
        + bind(b"p", b"s")
        + run("ALTER TABLE tt ADD b int")
        + execute(b"p")
        + SYNC,
    ],
    # --- COPY
    "copy out": [
        query(f"COPY ({ALL}) TO STDOUT"),
        query(f"COPY ({ALL}) TO STDOUT (FORMAT csv, HEADER)"),
        query(f"COPY ({ALL}) TO STDOUT (FORMAT binary)"),
    ],
    "copy out, extended": [
        parse(f"COPY ({ALL}) TO STDOUT (FORMAT binary)")
        + describe(b"S")
        + bind()
        + describe(b"P")
        + execute()
        + SYNC
    ],
    "copy out, extended, in a pipeline": [
        run(ALL) + run(f"COPY ({ALL}) TO STDOUT") + run("SELECT 1") + SYNC
    ],
    "copy out in a batch": [
        query(f"SELECT 1; COPY ({ALL}) TO STDOUT; {ALL}; COPY (SELECT 1) TO STDOUT")
    ],
    "copy out that fails": [
        query("COPY (SELECT 10 / (3 - id) FROM {t} ORDER BY id) TO STDOUT"),
        query("SELECT 1"),
    ],
    "copy in": [
        query("CREATE TEMP TABLE tt (a int)"),
        (query("COPY tt FROM STDIN"), "G", 1),
        (frame(b"d", b"1\n2") + frame(b"d", b"3\n") + frame(b"c"), "Z", 1),
        query("SELECT a FROM tt"),
    ],
    "copy in, flush and sync meanwhile": [
        query("CREATE TEMP TABLE tt (a int)"),
        (query("COPY tt FROM STDIN"), "G", 1),
        (frame(b"d", b"1\n") + SYNC + FLUSH + frame(b"d", b"2\n") + frame(b"c"), "Z", 1),
        query(ALL),
    ],
    "copy in, extended": [
        query("CREATE TEMP TABLE tt (a int)"),
        (run("COPY tt FROM STDIN") + FLUSH, "G", 1),
        (frame(b"d", b"1\n") + frame(b"c") + SYNC, "Z", 1),
        run(ALL) + SYNC,
    ],
    "copy in, extended, rows sent at once": [
        query("CREATE TEMP TABLE tt (a int)"),
        (run("COPY tt FROM STDIN") + SYNC + frame(b"d", b"1\n") + frame(b"c") + SYNC, "Z", 1),
        run(ALL) + SYNC,
    ],
    "copy in, extended, refused by the client": [
        query("CREATE TEMP TABLE tt (a int)"),
        (run("COPY tt FROM STDIN") + FLUSH, "G", 1),
        (frame(b"d", b"1\n") + frame(b"f", b"no\0") + SYNC, "Z", 1),
        run(ALL) + SYNC,
    ],
    "copy in, refused by the client, simple": [
        query("CREATE TEMP TABLE tt (a int)"),
        (query("COPY tt FROM STDIN"), "G", 1),
        (frame(b"f", b"no\0"), "Z", 1),
        query(ALL),
    ],
    "copy in, refused by the hub": [
        query("CREATE TEMP TABLE tt (a int)"),
        (query("COPY tt FROM STDIN"), "G", 1),
        (frame(b"d", b"x\n") + frame(b"d", b"1\n") * 100 + frame(b"c"), "Z", 1),
        query(ALL),
    ],
    "copy in, a batch of two": [
        query("CREATE TEMP TABLE tt (a int)"),
        (query(f"COPY tt FROM STDIN; COPY tt FROM STDIN; {ALL}"), "G", 1),
        (frame(b"d", b"1\n") + frame(b"c"), "G", 1),
        (frame(b"d", b"2\n") + frame(b"c"), "Z", 1),
        query("SELECT a FROM tt"),
    ],
    "copy in, in a failed transaction": [
        query("CREATE TEMP TABLE tt (a int)"),
        query("BEGIN; SELECT 1/0"),
        query("COPY tt FROM STDIN"),
        query(f"ROLLBACK; {ALL}"),
    ],
    "copy in, ended where none is": [
        (frame(b"d", b"1\n") + frame(b"c") + frame(b"f", b"no\0") + query(ALL), "Z", 1)
    ],
    "copy in, ended while skipping": [
        parse("SELEC") + frame(b"d", b"1\n") + frame(b"c") + SYNC,
        run(ALL) + SYNC,
    ],
    "copy in, binary": [
        query("CREATE TEMP TABLE tt (a int)"),
        (query("COPY tt FROM STDIN (FORMAT binary)"), "G", 1),
        (
            frame(b"d", b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1\0\0\0\4\0\0\0\7" + b"\xff\xff")
            + frame(b"c"),
            "Z",
            1,
        ),
        query("SELECT a FROM tt"),
    ],
    "function call": [frame(b"F", struct.pack("!IHHH", PI, 0, 0, 0))],
}


@pytest.fixture(scope="module")
def expected(published, hub):
    """What the hub itself answers to a sequence, asked once."""
    answers = {}

    def answer(name):
        if name not in answers:
            raw = Raw(**published, host=hub.host, port=hub.port)
            answers[name] = play(raw, SEQUENCES[name], b"public.orders")
            raw.close()
        return answers[name]

    return answer


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_client_sees_what_postgresql_sends(name, raw, expected, federation):
    assert play(raw, SEQUENCES[name], b"pub.orders") == expected(name)
    assert ("Z", b"I") in expected(name)


@pytest.mark.parametrize("name", SEQUENCES)
def test_cut_anywhere(name, raw, expected, federation):
    """Messages that come in pieces mean the same."""

    def send_slowly(*parts):
        for part in parts:
            size = 3 if len(part) < 100_000 else 100_000
            for at in range(0, len(part), size):
                raw.socket.sendall(part[at : at + size])

    raw.send = send_slowly
    assert play(raw, SEQUENCES[name], b"pub.orders") == expected(name)


@pytest.mark.parametrize("seed", range(3))
def test_one_after_another_in_one_session(seed, raw, connect_raw, directly, federation):
    """What the session remembers of earlier ones, which SQL has ended behind its back."""
    cleared = [query("ROLLBACK"), query("DEALLOCATE ALL; CLOSE ALL; DISCARD TEMP; RESET ALL")]
    names = list(SEQUENCES)
    random.Random(seed).shuffle(names)
    hub = connect_raw(directly)
    for at, name in enumerate(names):
        before = names[max(at - 3, 0) : at]
        due = play(hub, SEQUENCES[name] + cleared, b"public.orders")
        got = play(raw, SEQUENCES[name] + cleared, b"pub.orders")
        assert got == due, f"{name}, behind {before}"
