"""The demo: a marketplace with four owners in two technologies, and questions put to it.

``marketplace`` makes the rows and knows the right answers, ``databases`` puts the rows into the
owners' databases, ``marketplace/`` is their configuration (the same files as
``examples/marketplace``), ``show`` asks and prints, ``command`` puts it all together.
"""
