"""The rules of an account: what it may do with which resources.

Owns: the text form of rules, and the choice of the rule that decides.

    rules = rule (";" rule)*
    rule  = resource "," level         level is NONE, READ or READ_UPDATE

The form is the original's. Spaces around a resource and a level do not count. In a resource each
``*`` stands for any characters, also none and also ``/``; the resource has to be matched as a
whole. The first rule that matches decides, so a rule with ``NONE`` in front takes rights away.

The original reads a resource as a regular expression whose ``*`` mean ``.*``. Here all other
characters stand for themselves: a dot in a name is a dot, and no rule can take exponential time.

Invariants:
1. When a rule is malformed, it is ignored and reported, and the others count. Held by
   ``test_a_malformed_rule_is_ignored_and_told``.
2. Matching a resource with a rule takes time at most proportional to the product of their lengths.
   Held by ``test_matching_does_not_take_exponential_time``.
3. When rules are rendered and parsed again, they are the same. Held by
   ``test_rules_survive_their_text_form``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pravega_security.resources import Level

RULES_SEPARATOR: Final = ";"
LEVEL_SEPARATOR: Final = ","
RESOURCE_START: Final = "prn"
"""The beginning of every resource, without which a rule is malformed."""
_PATTERN_CHARACTERS = frozenset("\\^$|?+()[]{}")
"""Characters with a meaning in regular expressions and in no name of a resource."""
_SPACES = "".join(map(chr, range(0x21)))
"""The characters that the original trims."""


class AccessRuleError(ValueError):
    """The text is no rule."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The level of the resources that match ``pattern``."""

    pattern: str
    level: Level
    _literals: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_literals", tuple(self.pattern.split("*")))

    def __str__(self) -> str:
        return f"{self.pattern}{LEVEL_SEPARATOR}{self.level.name}"

    def matches(self, resource: str) -> bool:
        """Return whether the rule is about the resource."""
        first, *between = self._literals
        if not between:
            return resource == first
        last = between.pop()
        end = len(resource) - len(last)
        position = len(first)
        if position > end or not (resource.startswith(first) and resource.endswith(last)):
            return False
        # The earliest place of each literal leaves the most for those after it.
        for literal in between:
            found = resource.find(literal, position, end)
            if found < 0:
                return False
            position = found + len(literal)
        return True


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of one account, in their order."""

    rules: tuple[AccessRule, ...] = ()
    problems: tuple[str, ...] = ()
    """Sentences about what was ignored, or cannot have the effect that it seems to have."""

    def level_for(self, resource: str) -> Level:
        """Return what the first rule that matches says; ``NONE`` if none does."""
        for rule in self.rules:
            if rule.matches(resource):
                return rule.level
        return Level.NONE

    def __str__(self) -> str:
        return RULES_SEPARATOR.join(map(str, self.rules))

    def with_rule(self, rule: AccessRule, *, first: bool) -> AccessRules:
        """Return these rules with another. It replaces the one with the same pattern, where that
        is; a new one is the last. With ``first`` it becomes the first in either case."""
        rules = list(self.rules)
        places = [place for place, each in enumerate(rules) if each.pattern == rule.pattern]
        if places and not first:
            rules[places[0]] = rule
            for place in reversed(places[1:]):
                del rules[place]
            return AccessRules(tuple(rules), self.problems)
        others = (each for each in rules if each.pattern != rule.pattern)
        return AccessRules((rule, *others) if first else (*others, rule), self.problems)

    def without(self, pattern: str) -> AccessRules:
        """Return these rules without those that have exactly this pattern."""
        left = tuple(each for each in self.rules if each.pattern != pattern)
        return AccessRules(left, self.problems)

    def rule_before(self, rule: AccessRule) -> AccessRule | None:
        """Return a rule that decides in the place of ``rule``, for all that it is about; None if
        there is none."""
        for each in self.rules:
            if each.pattern == rule.pattern:
                return None
            if each.matches(rule.pattern):
                return each
        return None


def parse_access_rules(text: str) -> AccessRules:
    """Return the rules in ``text``. Malformed ones are ignored, and reported in ``problems``."""
    rules, problems = [], []
    for number, part in enumerate(text.split(RULES_SEPARATOR), 1):
        if not part.strip(_SPACES):
            continue
        try:
            rule = parse_access_rule(part)
        except AccessRuleError as error:
            problems.append(f"rule {number} is ignored: {error}")
            continue
        rules.append(rule)
        if not _PATTERN_CHARACTERS.isdisjoint(rule.pattern):
            problems.append(
                f"rule {number} matches nothing: {rule.pattern!r} is no regular expression here,"
                ' only "*" has a meaning'
            )
    return AccessRules(tuple(rules), tuple(problems))


def parse_access_rule(text: str) -> AccessRule:
    """Return the rule that ``text`` is. Raises ``AccessRuleError``."""
    parts = [part.strip(_SPACES) for part in text.split(LEVEL_SEPARATOR)]
    if len(parts) != 2:
        raise AccessRuleError('it has to be a resource, "," and a level')
    pattern, level = parts
    if level not in Level.__members__:
        raise AccessRuleError("its level has to be NONE, READ or READ_UPDATE")
    return make_access_rule(pattern, Level[level])


def make_access_rule(pattern: str, level: Level) -> AccessRule:
    """Return a rule. Raises ``AccessRuleError`` for a pattern that has no text form."""
    if not pattern.startswith(RESOURCE_START):
        raise AccessRuleError(f'its resource has to begin with "{RESOURCE_START}::"')
    if not pattern.isprintable() or not {RULES_SEPARATOR, LEVEL_SEPARATOR}.isdisjoint(pattern):
        raise AccessRuleError('its resource has a ",", a ";" or a character that is no text')
    if pattern != pattern.strip(_SPACES):
        raise AccessRuleError("its resource begins or ends with a space")
    return AccessRule(pattern, level)


def merge_access_rules(parts: Iterable[AccessRules]) -> AccessRules:
    """Return all rules of all parts, in their order."""
    each = tuple(parts)
    return AccessRules(
        tuple(rule for part in each for rule in part.rules),
        tuple(problem for part in each for problem in part.problems),
    )
