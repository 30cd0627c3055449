"""Security: resources, levels, principals, accounts, tokens and certificates."""
