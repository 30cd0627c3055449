"""The compiled part of the store: codecs, checksums, the cache, the B+Tree, the read index.

Checksums and hashes lie here, the rest in a folder for each part. All work on memory alone but the
modules of ``native_io``, which read and write files without the interpreter's lock;
``native_io.journal_thread`` runs a thread of its own. No module uses sockets or trio.
"""
