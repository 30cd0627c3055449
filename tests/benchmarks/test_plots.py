import itertools
from xml.etree import ElementTree

from benchmarks.plots import Curve, Panel, Plot, svg, timeline_svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_plot_has_a_line_and_a_name_for_every_curve() -> None:
    curves = (Curve("a < b", ((1, 10), (100, 1_000))), Curve("c", ((10, 100),)))
    root = ElementTree.fromstring(svg(Plot("title", "events/s", "ms", curves)))
    lines = root.findall(f"{NAMESPACE}polyline")
    assert len(lines) == 2
    words = [text.text for text in root.findall(f"{NAMESPACE}text")]
    assert {"title", "events/s", "ms", "a < b", "c", "10", "1k"} <= set(words)


def test_larger_numbers_lie_further_right_and_higher() -> None:
    curve = Curve("a", ((1, 10), (2, 20), (50, 3_000)))
    root = ElementTree.fromstring(svg(Plot("t", "x", "y", (curve,))))
    line = root.find(f"{NAMESPACE}polyline")
    assert line is not None
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_one_point_alone_is_a_plot() -> None:
    assert "<circle" in svg(Plot("t", "x", "y", (Curve("a", ((5, 5),)),)))


def test_a_timeline_has_a_panel_below_the_other() -> None:
    rate = Panel("events/s", (Curve("a", ((0, 10), (5, 2_000), (60, 0))),))
    levels = Panel("segments", (Curve("b", ((0, 1), (30, 4), (60, 1))),), steps=True)
    root = ElementTree.fromstring(timeline_svg("t < u", "seconds", (rate, levels)))
    first, second = root.findall(f"{NAMESPACE}polyline")
    slopes = [tuple(map(float, pair.split(","))) for pair in first.attrib["points"].split()]
    steps = [tuple(map(float, pair.split(","))) for pair in second.attrib["points"].split()]
    assert len(slopes) == 3
    assert [x for x, _ in steps] == sorted(x for x, _ in steps)
    assert all(a == c or b == d for (a, b), (c, d) in itertools.pairwise(steps))
    assert max(y for _, y in slopes) < min(y for _, y in steps)
    words = [text.text for text in root.findall(f"{NAMESPACE}text")]
    assert {"t < u", "seconds", "events/s", "segments", "a", "b", "0", "1k"} <= set(words)
