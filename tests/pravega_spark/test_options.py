"""Options are checked before anything is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.errors import OptionError
from pravega_spark.options import KNOWN, SPARKS_OWN, Options, open_store_access
from pravega_wire.commands import AuthTokenCheckFailed
from segstore_client.access.credentials import Credentials
from segstore_client.access.tokens import TOKEN_EXPIRED
from segstore_client.addresses import DEFAULT_CONTROLLER


def test_defaults_are_those_of_the_official_connector() -> None:
    options = Options.parse({"scope": "s", "stream": "t"})
    assert options.controller == DEFAULT_CONTROLLER
    assert options.name == "s/t"
    assert options.allow_create_scope
    assert options.allow_create_stream
    assert options.fail_on_data_loss
    assert options.max_bytes_per_trigger == 0


def test_names_are_taken_in_any_case_and_others_left_to_spark() -> None:
    options = Options.parse({"Scope": "s", "STREAM": "t", "checkpointLocation": "x"})
    assert options.name == "s/t"


def test_the_official_name_of_the_limit_works_too() -> None:
    given = {"scope": "s", "stream": "t", "approx_bytes_per_trigger": "10"}
    assert Options.parse(given).max_bytes_per_trigger == 10
    given["max_bytes_per_trigger"] = "20"
    assert Options.parse(given).max_bytes_per_trigger == 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "scope"),
        ({"scope": "s"}, "stream"),
        ({"scope": "s", "metadata": "StreamInfo"}, "stream"),
        ({"scope": "s", "metadata": "all"}, "metadata"),
        ({"scope": "s", "stream": "t", "fail_on_data_loss": "maybe"}, "fail_on_data_loss"),
        ({"scope": "s", "stream": "t", "min_partitions": "-1"}, "min_partitions"),
        ({"scope": "s", "stream": "t", "max_rows_per_trigger": "many"}, "max_rows_per_trigger"),
        (
            {"scope": "s", "stream": "t", "start_streamcut": "latest"},
            "there is no option start_streamcut: did you mean start_stream_cut?",
        ),
        (
            {"scope": "s", "stream": "t", "Transaction_Timeout": "1"},
            "no option Transaction_Timeout: did you mean transaction_timeout_ms?",
        ),
        ({"scope": "s", "stream": "t", "zzz": "1"}, "there is no option zzz$"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Options.parse(given)


def test_every_name_that_is_read_is_known() -> None:
    """The source refuses unknown options: it knows each one that it reads, and no other."""

    class Recorded(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

        def __contains__(self, name: object) -> bool:
            read.add(str(name))
            return super().__contains__(name)

        def __getitem__(self, name: str) -> str:
            read.add(name)
            return super().__getitem__(name)

    read: set[str] = set()
    Options._of(Recorded(scope="s", stream="t"))
    assert read - SPARKS_OWN == KNOWN


def test_options_show_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret")
    given = {"scope": "s", "stream": "t", "user": "alice", "passwordFile": str(path)}
    options = Options.parse(given)
    assert options.access.credentials == Credentials.from_password("alice", "s3cret")
    assert "s3cret" not in repr(options)
    assert options.access.credentials.header.partition(" ")[2] not in repr(options)
    with pytest.raises(OptionError, match="no option Password, since Spark shows options"):
        Options.parse({**given, "Password": "s3cret"})


def test_tasks_get_what_the_files_of_the_driver_say(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc")
    options = Options.parse({"scope": "s", "stream": "t", "token_file": str(path)})
    sent = pickle.loads(pickle.dumps(options))
    path.unlink()
    assert sent.access.credentials.header == "Bearer abc"


def test_variables_name_the_caller_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGSTORE_USER", "alice")
    monkeypatch.setenv("SEGSTORE_PASSWORD", "p")
    options = Options.parse({"scope": "s", "stream": "t"})
    assert options.access.credentials == Credentials.from_password("alice", "p")


def test_a_task_uses_the_token_of_the_driver_and_asks_for_another_later() -> None:
    asked: list[str] = []

    def ask() -> str:
        asked.append("again")
        return "another"

    options = Options.parse({"scope": "s", "stream": "t"})
    assert open_store_access(options, "", ask).token() == ""
    access = open_store_access(options, "of the driver", ask)
    assert access.token() == "of the driver"
    assert not asked
    access.refusal(AuthTokenCheckFailed(1, "", TOKEN_EXPIRED), "no")
    assert access.token() == "another"
    secured = Options.parse({"scope": "s", "stream": "t", "controller": "tls://h:1"})
    assert open_store_access(secured, "", ask).tls is not None
    assert access.tls is None
