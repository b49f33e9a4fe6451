"""The PostgreSQL behind the proxy: its server, its roles, what is published in it, its planner."""
