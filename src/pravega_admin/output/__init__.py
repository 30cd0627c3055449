"""The input and output of commands: streams, tables, help, logs, interrupts."""
