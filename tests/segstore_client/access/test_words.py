"""Errors advise each program's user in the words of that program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trustme

from pravega_admin.errors import COMMAND_LINE
from pravega_spark.options import WORDS as SPARK
from pravega_wire.commands import AuthTokenCheckFailed
from segstore_client.access.settings import AccessSettings, build_access
from segstore_client.access.tls import ClientTls, find_tls_mistake
from segstore_client.access.tokens import StoreAccess
from segstore_client.access.words import ENVIRONMENT, AccessWords
from segstore_client.control import WORDS as PROGRAM
from segstore_client.control import open_controller
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import PravegaError, UsageError
from support.secure_servers import Controller

CERTIFICATE = trustme.CA().issue_cert("127.0.0.1")
EVERY = (ENVIRONMENT, COMMAND_LINE, SPARK, PROGRAM)


@pytest.fixture
def address() -> Iterator[str]:
    with Controller().running() as port:
        yield f"tcp://127.0.0.1:{port}"


@pytest.mark.parametrize("words", EVERY)
def test_each_error_about_who_calls_has_the_words(address: str, words: AccessWords) -> None:
    access = build_access([], words=words)
    with ControllerClient(address, access=access) as controller:
        with pytest.raises(PravegaError) as raised:
            list(controller.list_scopes())
        assert str(raised.value).endswith(words.login_advice)
    refused = AuthTokenCheckFailed(1, "", 0)
    assert str(StoreAccess(words=words).refusal(refused, "no")).endswith(words.login_advice)
    with pytest.raises(UsageError) as missing:
        build_access([AccessSettings(user="alice")], words=words)
    assert str(missing.value) == f"user alice has no password: {words.password_advice}"


@pytest.mark.parametrize("words", EVERY)
def test_the_error_of_a_strange_certificate_has_the_words(words: AccessWords) -> None:
    with Controller().running(CERTIFICATE) as port:
        found = find_tls_mistake("127.0.0.1", port, ClientTls(), seconds_max=30, words=words)
    assert found.endswith(words.ca_advice)


def test_a_program_is_told_of_no_option_of_the_command_line(address: str) -> None:
    with pytest.raises(PravegaError, match=r"such as by user= and password= of connect\(\)") as it:
        list(open_controller(address, AccessSettings(), patience=None).list_scopes())
    assert "--" not in str(it.value)
    for words in (ENVIRONMENT, SPARK, PROGRAM):
        assert "--" not in f"{words.login} {words.password} {words.ca}"
