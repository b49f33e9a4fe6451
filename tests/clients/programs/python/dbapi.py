"""The tasks as the DB-API has them (PEP 249); a driver's program says what its driver does otherwise."""

from __future__ import annotations

import sys
from contextlib import closing

from common import (
    BIG,
    CITY,
    COUNT,
    CURSOR,
    DAYS,
    FAILS,
    JOIN,
    SLOW,
    later,
    main,
    summed,
    told,
)


class Driver:
    """A driver with one connection, and how it does each task.

    A driver's own are ``Error``, its exception; ``sqlstate``, which takes one of these; ``stop``, which
    cancels what runs; ``connect`` and ``introspect``.
    """

    executes = ()
    """Where statements are executed, where that is not the server; as psql is told."""

    def __init__(self, connection):
        self.connection = connection

    def run(self):
        """Run the tasks that the arguments name."""
        main(**{task: getattr(self, task) for task in sys.argv[1:]})

    def ask(self, statement, *parameters):
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(statement, *([parameters] if parameters else []))
            return cursor.fetchall()

    def fails(self, statement):
        """Return the SQLSTATE of a statement's error."""
        try:
            self.ask(statement)
        except self.Error as error:
            return self.sqlstate(error)
        return "nothing failed"

    def in_parts(self):
        """Open a cursor that fetches 100 rows at a time."""
        named = self.connection.cursor("in_parts")
        named.itersize = 100
        return named

    def parameters(self):
        return told(self.ask(JOIN, CITY, DAYS))

    def cursor(self):
        self.connection.rollback()
        self.connection.autocommit = False
        with closing(self.in_parts()) as cursor:
            cursor.execute(CURSOR)
            return summed(cursor)

    def big(self):
        self.connection.rollback()
        return summed(self.ask(BIG))

    def errors(self):
        self.connection.rollback()
        self.connection.autocommit = True
        seen = [self.fails(FAILS), self.ask(COUNT)]
        self.connection.autocommit = False
        seen += [self.ask(COUNT), self.fails(FAILS), self.fails(COUNT)]
        self.connection.rollback()
        return [*seen, self.ask(COUNT)]

    def cancel(self):
        self.connection.rollback()
        self.connection.autocommit = False
        thread = later(self.stop, *self.executes)
        seen = self.fails(SLOW)
        thread.join()
        self.connection.rollback()
        return [seen, self.ask(COUNT)]
