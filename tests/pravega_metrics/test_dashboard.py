"""The dashboard names what is declared, and shows all of it."""

from __future__ import annotations

import json
import re

from pravega_metrics.dashboard import ROWS, WIDTH, make_dashboard
from pravega_metrics.metrics import METRICS
from support.expressions import find_undeclared, names_in, result_labels, split_name

QUERIES = [query for row in ROWS for panel in row.panels for query in panel.queries]


def test_expressions_name_what_is_declared() -> None:
    assert {query.expression: find_undeclared(query.expression) for query in QUERIES} == {
        query.expression: [] for query in QUERIES
    }


def test_names_of_lines_are_labels_that_the_result_has() -> None:
    for query in QUERIES:
        if named := set(re.findall(r"\{\{(\w+)\}\}", query.legend)):
            assert named <= result_labels(query.expression), query


def test_every_metric_is_shown() -> None:
    shown = {split_name(name)[0] for query in QUERIES for name in names_in(query.expression)}
    assert {name for name in METRICS if name.startswith("segstore_")} - shown == set()


def test_panels_have_places_of_their_own() -> None:
    document = make_dashboard()
    assert json.loads(json.dumps(document)) == document
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        squares = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not squares & taken
        taken |= squares


def test_every_panel_has_a_unit_a_description_and_the_chosen_datasource() -> None:
    document = make_dashboard()
    assert document["schemaVersion"] >= 38
    names = [variable["name"] for variable in document["templating"]["list"]]
    assert names == ["datasource", "job", "host"]
    for panel in document["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"].endswith(".")
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
