"""Broken conversations: what the wire protocol's code makes of bytes that nobody should send."""
