"""Pages of the console, and what each has to be."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from support.http_controllers import HttpClient

FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
VOID = {"meta", "link", "input", "br", "rect", "path", "hr"}


class Checked(HTMLParser):
    """Checks a page: elements end in order, ids are used once, labels have their fields, and
    nothing is of a kind that the policy forbids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.fields: list[dict[str, str | None]] = []
        self.faults: list[str] = []
        self.feed(text)
        self.close()
        self.faults += [f"id {each} twice" for each in {*self.ids} if self.ids.count(each) > 1]
        self.faults += [f"label of no field {each}" for each in self.labels if each not in self.ids]
        for field in self.fields:
            if field.get("id") not in self.labels and not field.get("aria-label"):
                self.faults.append(f"field without a label: {field}")
        self.faults += [f"{each} does not end" for each in self.open]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in found:
            self.ids.append(found["id"] or "")
        for name in ("aria-labelledby", "aria-describedby"):
            if name in found and found[name] not in self.ids and name == "aria-describedby":
                self.faults.append(f"{name} {found[name]}")
        if tag == "label":
            self.labels.append(found.get("for") or "")
        if tag in ("input", "select", "textarea") and found.get("type") != "hidden":
            self.fields.append(found)
        if "style" in found or any(name.startswith("on") for name in found):
            self.faults.append(f"{tag} with a style or a handler")
        if tag == "style" or (tag == "script" and "src" not in found):
            self.faults.append(f"{tag} in the page")
        for name in ("src", "href", "action", "hx-get", "hx-post"):
            if found.get(name, "") and not re.match(r"/console/|[?#]", found[name] or ""):
                self.faults.append(f"{tag} leads to {found[name]}")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.faults.append(f"{tag} ends where it did not begin")


async def make_stream(client: HttpClient, scope: str = "s", stream: str = "t", **auth: Any) -> None:
    await client.ask("POST", "/v1/scopes", {"scopeName": scope}, **auth)
    document = {"streamName": stream, "scalingPolicy": FIXED}
    answer = await client.ask("POST", f"/v1/scopes/{scope}/streams", document, **auth)
    assert answer.status == 201
