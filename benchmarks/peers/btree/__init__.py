"""The B+Tree of attributes beside the original's, one process a run.

`src/` drives the original's `BTreeIndex` over pages in memory, `our_tree.py` does the same work to
ours; `runs.py` starts either.
"""
