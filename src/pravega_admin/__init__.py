"""The `segstore` command: serves and administers. The only place that wires the parts together."""
