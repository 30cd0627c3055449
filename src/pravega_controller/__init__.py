"""The controller: it keeps scopes, streams and their history in tables of segment stores."""
