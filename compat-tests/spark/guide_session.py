"""The Python session of a guide: runs pieces of code in one namespace, as a person types them.

Each line of stdin is a piece of code as a JSON string. What it prints goes to stdout, and then a
line with ``END`` alone. A piece that fails ends the session.
"""

from __future__ import annotations

import json
import sys

END = "\x1e"


def main() -> None:
    """Run pieces until stdin ends."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        exec(compile(json.loads(line), "<guide>", "exec"), namespace)
        print(END, flush=True)


if __name__ == "__main__":
    main()
