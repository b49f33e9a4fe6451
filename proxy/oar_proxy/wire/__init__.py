"""PostgreSQL's frontend/backend protocol as pure functions and state: no sockets, no clock.

``startup`` reads what a client sends first, ``messages`` encodes and decodes single messages,
``conversation`` knows which answer belongs to which request. The section numbers in comments are
those of the PostgreSQL documentation, chapter "Frontend/Backend Protocol".
"""
