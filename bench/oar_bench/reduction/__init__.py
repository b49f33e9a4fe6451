"""Rows that leave the owners, against the rows that take part in the joins they are asked for."""
