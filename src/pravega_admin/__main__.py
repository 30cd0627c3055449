"""``python -m pravega_admin``: the command line, and the entry of the servers' processes.

Owns: the two special verbs ``child`` and ``supervise``, which a standalone store uses for its own
processes; they skip the command line's imports, which take time and memory.
"""

from __future__ import annotations

import sys


def _main() -> None:
    if sys.argv[1:2] == ["child"]:
        from pravega_admin.serving.child import main as child_main

        sys.exit(child_main(sys.argv[2:]))
    if sys.argv[1:2] == ["supervise"]:
        from pravega_admin.supervisor.supervise import main as supervise_main

        sys.exit(supervise_main(sys.argv[2:]))
    from pravega_admin.cli import main

    main()


if __name__ == "__main__":
    _main()
