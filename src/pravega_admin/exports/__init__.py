"""Streams as files: what an export reads, the file's form, and how an import writes it again."""
