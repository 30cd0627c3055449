"""The `segstore` command: serves and administers; the only package that assembles the others."""

import os

# Otherwise gRPC writes lines of its own form to stderr, among those of the servers' logs, as often
# as a peer without TLS likes. gRPC reads the variable when it is imported; every process of the
# command imports this package before that.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
