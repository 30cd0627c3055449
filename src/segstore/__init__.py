"""The segment store: containers that keep append-only segments durable."""
