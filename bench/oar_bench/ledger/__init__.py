"""``oar bench ledger``: what the gate and the ledger cost."""
