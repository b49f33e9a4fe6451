"""``oar bench kills``: proxies and hubs that are killed, and what the ledger holds then."""
