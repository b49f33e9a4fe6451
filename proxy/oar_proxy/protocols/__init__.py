"""The paper's protocols: a model that asks owners in words of SQL, and reads the rows they return.

`named.answer` runs one of them for one question. The compiled line (``pipeline``) shows no row to a
model; these do, where the owner's policy says that they may.
"""
