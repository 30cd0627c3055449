"""What clients do between commands, without I/O: what to send next, and what a reply means."""
