"""``python -m pravega_admin``: the command line, and the entry of the servers' processes.

Owns: the one special verb ``child``, which the supervisor uses; it skips the command line's imports
because a process's start is part of the time until the store is ready.
"""

from __future__ import annotations

import sys


def _main() -> None:
    if sys.argv[1:2] == ["child"]:
        from pravega_admin.child import main as child_main

        sys.exit(child_main(sys.argv[2:]))
    from pravega_admin.cli import main

    main()


if __name__ == "__main__":
    _main()
