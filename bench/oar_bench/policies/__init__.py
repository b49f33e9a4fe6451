"""``oar bench policies``: what random policies make of statements that join several owners."""
