"""``oar bench load`` and ``soak``: many clients at once, and faults that must not reach others."""
