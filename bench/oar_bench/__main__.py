"""``python -m oar_bench``: the benchmark commands without the rest of the command line."""

from oar_bench.cli import app

app()
