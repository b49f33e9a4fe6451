"""Random statements over random owners, compared with the same statements over merged tables."""
