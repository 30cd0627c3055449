"""The state machines that write, read and recover a ledger: decisions without input or output."""
