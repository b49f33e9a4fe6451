"""SQL of the hub's dialect, read with PostgreSQL's own parser (libpg_query, by way of pglast).

No other package uses pglast. :mod:`~oar_proxy.sql.text` has the text and its tokens,
:mod:`~oar_proxy.sql.tree` answers questions about a parse tree, and :mod:`~oar_proxy.sql.parse`
gives a statement with what it refers to (:mod:`~oar_proxy.sql.parsed`) and the place where each
stands. Rewriting is splicing text, so that everything else reaches the hub as the client wrote it.
"""
