"""What a governance team does with the ledger: ``oar audit``."""
