"""Delegation tokens that expire while clients write, commit and scale: a simulation from seeds."""
