"""The streaming cache beside others, one process a run: the original's (Java), ours, a dictionary,
RocksDB.

`workload.py` says what is done; `src/` does the same in Java. `python_caches.py` does it to what
can be reached from Python; `runs.py` starts either.
"""
