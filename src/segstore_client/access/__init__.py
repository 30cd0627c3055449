"""The credentials of clients, the servers that they trust, and tokens for segment stores."""
