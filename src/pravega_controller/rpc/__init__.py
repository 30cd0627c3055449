"""The controller's gRPC server: one function for each call, what it checks and what it answers."""
