"""``oar verify``: pin reviewed answers, list them, and try them against what is published."""
