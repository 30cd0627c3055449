from xml.etree import ElementTree

from benchmarks.plots import Curve, Plot, svg

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
