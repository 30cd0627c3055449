"""The words of others: what a user of Kafka types, answered with ours, and options before a verb.

Owns: the tables of these words, and the order of options in a command line.

Invariants:
1. When an option comes before the verb, and all verbs that ask a controller have this option, it
   counts as if it came after the verb. Held by ``test_options_may_stand_before_the_verb``.
2. When a verb or an option is one of Kafka's, the refusal names ours. Held by
   ``test_words_of_kafka_are_answered_with_ours``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OPTIONS: Mapping[str, str] = {
    "--partitions": "a stream has segments: --segments",
    "--topic": "a topic is a stream: name it as SCOPE/STREAM, without an option",
    "--bootstrap-server": "clients begin at the controller: --controller",
    "--bootstrap-servers": "clients begin at the controller: --controller",
    "--broker-list": "clients begin at the controller: --controller",
    "--brokers": "clients begin at the controller: --controller",
    "--from-beginning": "say --from head",
    "--offset": "say --from PLACE: head, tail, a time or a stream cut",
    "--max-messages": "say --count",
    "--group": "name a reader group as SCOPE/GROUP, without an option",
    "--consumer-group": "name a reader group as SCOPE/GROUP, without an option",
    "--replication-factor": "streams have none: tier 1 is on bookies, tier 2 where you keep it",
    "--replicas": "streams have none: tier 1 is on bookies, tier 2 where you keep it",
    "--to-earliest": "say --to head",
    "--to-latest": "say --to tail",
    "--to-datetime": "say --to TIME",
    "--to-offset": "say --to with a stream cut",
    "--reset-offsets": "say segstore group seek",
    "--execute": "it is done at once; --dry-run only shows it",
    "--config": "settings of a stream are options: see segstore stream update --help",
}
"""The answer to each option of Kafka's tools and of rpk."""
VERBS: Mapping[str, str] = {
    "topic": "stream",
    "topics": "stream",
    "consume": "read",
    "consumer": "read",
    "subscribe": "read",
    "produce": "write",
    "producer": "write",
    "publish": "write",
    "consumer-group": "group",
    "groups": "group",
    "streams": "stream",
    "scopes": "scope",
    "namespace": "scope",
    "txn": "transaction",
    "kv": "table",
    "add-partitions": "scale",
    "alter": "update",
    "ls": "list",
    "rm": "delete",
    "info": "describe",
    "server-check": "doctor",
}
"""Our verb for each verb of Kafka's tools, rpk and nats."""
_SHARED = frozenset(
    {
        "--controller",
        "-c",
        "--output",
        "-o",
        "--user",
        "--password-file",
        "--token-file",
        "--ca",
        "--profile",
    }
)


def move_options(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a group of verbs with the options before the verb behind it."""
    moved: list[str] = []
    rest = list(arguments)
    kept: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, has_value, _ = rest[0].partition("=")
        if name not in _SHARED:
            kept.append(rest.pop(0))
        elif has_value or len(rest) < 2:
            moved.append(rest.pop(0))
        else:
            moved += [rest.pop(0), rest.pop(0)]
    if not rest:
        return list(arguments)
    place = rest.index("--") if "--" in rest else len(rest)
    return [*kept, *rest[:place], *moved, *rest[place:]]


def explain_option(name: str) -> str:
    """Return the answer to an option that does not exist; "" if it is nobody's."""
    answer = OPTIONS.get(name.partition("=")[0], "")
    return f"there is no {name}: {answer}" if answer else ""


def explain_verb(name: str, known: Sequence[str]) -> str:
    """Return the answer to a verb that does not exist; "" if it is nobody's."""
    ours = VERBS.get(name, "")
    return f"there is no {name}: say {ours}" if ours in known else ""
