"""The Pravega protocol without I/O: commands, codec, names, hashing, controller messages."""
