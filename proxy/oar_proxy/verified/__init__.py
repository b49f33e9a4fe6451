"""Governed answers: questions whose SQL people have reviewed, so that no model is asked."""
