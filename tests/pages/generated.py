"""Writes the parts of the documentation that follow from declarations in the sources.

    make pages

A part begins with a line ``<!-- made by make pages: NAME -->`` and ends with ``<!-- end -->``.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from command_tables import list_common_options, list_exit_codes, list_verbs
from figure_tables import table_of_front, table_of_summary
from metric_tables import table_of_metrics, table_of_original_names
from rest_tables import table_of_routes
from rpc_tables import table_of_rpcs
from setting_tables import table_of_names, table_of_settings
from wire_tables import table_of_commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PARTS = {
    "commands": table_of_commands,
    "options of verbs": list_common_options,
    "verbs": list_verbs,
    "exit codes": list_exit_codes,
    "routes": table_of_routes,
    "rpcs": table_of_rpcs,
    "settings of segment_store": partial(table_of_settings, "segment_store"),
    "settings of controller": partial(table_of_settings, "controller"),
    "names of segment_store": partial(table_of_names, "segment_store"),
    "names of controller": partial(table_of_names, "controller"),
    "metrics of segment_store": partial(table_of_metrics, "segment_store"),
    "metrics of controller": partial(table_of_metrics, "controller"),
    "metrics of process": partial(table_of_metrics, "process"),
    "names of metrics": table_of_original_names,
    "figures of the README": table_of_front,
    "figures of the summary": table_of_summary,
}
"""The functions that make each part."""
_PART = re.compile(r"(<!-- made by make pages: ([^>]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def texts() -> list[Path]:
    """Return the documents that may have such parts."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def pages() -> dict[Path, str]:
    """Return the pages with such parts, each with its text as it has to be."""
    found = {}
    for path in texts():
        text = path.read_text("utf-8")
        if _PART.search(text):
            found[path] = _PART.sub(lambda match: match[1] + PARTS[match[2]]() + match[3], text)
    return found


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content, "utf-8")
