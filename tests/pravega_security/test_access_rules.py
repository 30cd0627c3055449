"""Rules of accounts: their form, their order, and what they match."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_security.access_rules import (
    AccessRule,
    AccessRuleError,
    AccessRules,
    make_access_rule,
    merge_access_rules,
    parse_access_rule,
    parse_access_rules,
)
from pravega_security.resources import (
    ROOT,
    Level,
    key_value_table_resource,
    reader_group_resource,
    scope_resource,
    stream_resource,
)

ALL = {
    ROOT,
    scope_resource("S"),
    scope_resource("SS"),
    stream_resource("S", "t"),
    stream_resource("S", "tt"),
    reader_group_resource("S", "g"),
    key_value_table_resource("S", "k"),
    stream_resource("SS", "t"),
}
INSIDE_S = {
    stream_resource("S", "t"),
    stream_resource("S", "tt"),
    reader_group_resource("S", "g"),
    key_value_table_resource("S", "k"),
}
PATTERNS = st.text("ab*/:", max_size=12).map("prn".__add__)
RESOURCES = st.text("ab/:", max_size=16).map("prn".__add__)
RULES = st.builds(
    AccessRule,
    st.text(st.characters(exclude_characters=",;", exclude_categories=("C", "Z")), max_size=20).map(
        "prn::".__add__
    ),
    st.sampled_from(Level),
)


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("prn::*", ALL),
        ("prn::/*", ALL),
        ("prn*", ALL),
        ("prn::/", {ROOT}),
        ("prn::/scope:*", ALL - {ROOT}),
        ("prn::/scope:S", {scope_resource("S")}),
        ("prn::/scope:S/*", INSIDE_S),
        ("prn::/scope:S*", ALL - {ROOT}),
        ("prn::/scope:S/stream:*", {stream_resource("S", "t"), stream_resource("S", "tt")}),
        ("prn::/scope:S/stream:t", {stream_resource("S", "t")}),
        ("prn::/scope:*/stream:t", {stream_resource("S", "t"), stream_resource("SS", "t")}),
        ("prn::/scope:S/reader-group:*", {reader_group_resource("S", "g")}),
        ("prn::/scope:S/key-value-table:k", {key_value_table_resource("S", "k")}),
        ("prn::**", ALL),
        ("prn::/scope:.*", set()),
        ("prn::/scope:.", set()),
        ("PRN::*", set()),
    ],
)
def test_patterns_match_whole_resources(pattern: str, matched: set[str]) -> None:
    rule = AccessRule(pattern, Level.READ)
    assert {resource for resource in ALL if rule.matches(resource)} == matched


def test_a_longer_name_is_another_name() -> None:
    rules = parse_access_rules("prn::/scope:ab,READ;prn::/scope:ab/*,READ")
    assert rules.level_for(scope_resource("ab")) is Level.READ
    assert rules.level_for(scope_resource("abc")) is Level.NONE
    assert rules.level_for(stream_resource("ab", "t")) is Level.READ
    assert rules.level_for(stream_resource("abc", "t")) is Level.NONE


def test_a_dot_is_a_dot() -> None:
    rule = parse_access_rule("prn::/scope:a.b,READ")
    assert rule.matches("prn::/scope:a.b")
    assert not rule.matches("prn::/scope:axb")


def test_the_first_rule_that_matches_decides() -> None:
    text = "prn::/scope:S/stream:t,NONE;prn::/scope:S/*,READ;prn::*,READ_UPDATE"
    rules = parse_access_rules(text)
    assert rules.level_for(stream_resource("S", "t")) is Level.NONE
    assert rules.level_for(stream_resource("S", "u")) is Level.READ
    assert rules.level_for(ROOT) is Level.READ_UPDATE
    assert rules.level_for("other") is Level.NONE
    reverse = parse_access_rules(";".join(reversed(text.split(";"))))
    assert reverse.level_for(stream_resource("S", "t")) is Level.READ_UPDATE
    assert AccessRules().level_for(ROOT) is Level.NONE


@pytest.mark.parametrize(
    "text",
    [
        "prn::/",
        "prn::/,READ,",
        "prn::/,READ,READ",
        "prn::/,read",
        "prn::/,READ UPDATE",
        "prn::/,",
        ",READ",
        "/scope:S,READ",
        "*,READ",
        "xprn::/,READ",
        "prn::/scope:\0x,READ",
    ],
)
def test_a_malformed_rule_is_ignored_and_told(text: str) -> None:
    with pytest.raises(AccessRuleError):
        parse_access_rule(text)
    rules = parse_access_rules(f"prn::/scope:a,READ;{text};prn::/scope:b,READ_UPDATE")
    assert [each.pattern for each in rules.rules] == ["prn::/scope:a", "prn::/scope:b"]
    assert len(rules.problems) == 1
    assert rules.problems[0].startswith("rule 2 is ignored: ")


def test_spaces_and_empty_parts_do_not_count() -> None:
    rules = parse_access_rules(" prn::/ ,\tREAD ;; prn::*,NONE;")
    assert rules.rules == (AccessRule("prn::/", Level.READ), AccessRule("prn::*", Level.NONE))
    assert rules.problems == ()
    assert parse_access_rules("") == AccessRules()


def test_a_regular_expression_is_told() -> None:
    rules = parse_access_rules("prn::/scope:(a|b),NONE;prn::*,READ")
    assert rules.level_for(scope_resource("a")) is Level.READ
    assert "rule 1 matches nothing" in rules.problems[0]


def test_matching_does_not_take_exponential_time() -> None:
    rule = AccessRule("prn" + "*a" * 1000 + "*b", Level.READ)
    began = time.process_time()
    assert not rule.matches("prn" + "a" * 100_000)
    assert not AccessRule("prn(a+)+b", Level.READ).matches("prn" + "a" * 100_000)
    assert not AccessRule("prn" + "*" * 5000 + "b", Level.READ).matches("prn" + "a" * 100_000)
    assert time.process_time() - began < 2


@given(PATTERNS, RESOURCES)
def test_matching_agrees_with_a_regular_expression(pattern: str, resource: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), resource)
    assert AccessRule(pattern, Level.READ).matches(resource) == (expected is not None)


@given(st.lists(RULES).map(tuple))
def test_rules_survive_their_text_form(rules: tuple[AccessRule, ...]) -> None:
    assert parse_access_rules(str(AccessRules(rules))).rules == rules


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    rules = parse_access_rules(text)
    assert parse_access_rules(str(rules)).rules == rules.rules


@given(PATTERNS, PATTERNS, RESOURCES)
def test_a_rule_that_decides_before_another_matches_all_of_it(
    before: str, behind: str, resource: str
) -> None:
    rules = AccessRules((AccessRule(before, Level.NONE), AccessRule(behind, Level.READ)))
    found = rules.rule_before(rules.rules[1])
    if found is not None and rules.rules[1].matches(resource):
        assert found.matches(resource)


def test_rules_are_put_replaced_and_removed() -> None:
    rules = parse_access_rules("prn::/a,READ;prn::/b,READ;prn::/a,NONE")
    assert str(rules.with_rule(AccessRule("prn::/c", Level.NONE), first=False)) == (
        "prn::/a,READ;prn::/b,READ;prn::/a,NONE;prn::/c,NONE"
    )
    changed = AccessRule("prn::/a", Level.READ_UPDATE)
    assert str(rules.with_rule(changed, first=False)) == "prn::/a,READ_UPDATE;prn::/b,READ"
    moved = AccessRule("prn::/b", Level.NONE)
    assert str(rules.with_rule(moved, first=True)) == "prn::/b,NONE;prn::/a,READ;prn::/a,NONE"
    assert str(rules.without("prn::/a")) == "prn::/b,READ"
    assert rules.without("prn::/*") == rules


@pytest.mark.parametrize("pattern", ["prn::/a;b", "prn::/a,b", "prn::/a\n", "prn::/a ", "a", ""])
def test_a_resource_that_has_no_text_form_is_refused(pattern: str) -> None:
    with pytest.raises(AccessRuleError):
        make_access_rule(pattern, Level.READ)


def test_merged_rules_keep_their_order() -> None:
    parts = [parse_access_rules("prn::/a,READ;x"), parse_access_rules("prn::/b,NONE")]
    merged = merge_access_rules(iter(parts))
    assert str(merged) == "prn::/a,READ;prn::/b,NONE"
    assert len(merged.problems) == 1
