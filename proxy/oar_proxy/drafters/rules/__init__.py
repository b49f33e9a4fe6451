"""The offline drafter's rules: words, names, joins, reading a question, composing SQL.

Each module is one step from value to value; `drafters.offline` is the order of the steps.
"""
