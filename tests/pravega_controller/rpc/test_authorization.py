"""Callers, and what is refused, by a real controller over gRPC."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
import trio
from google.protobuf.message import Message
from structlog.testing import capture_logs

from pravega_controller import server
from pravega_controller.clocks import wall_clock_ms
from pravega_controller.config import ConfigurationError, ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.errors import UnauthenticatedError, UnverifiableError
from pravega_controller.rpc import authorization
from pravega_controller.rpc.audit_log import AuditLog
from pravega_controller.rpc.authorization import Authorization
from pravega_controller.rpc.health import HEALTH
from pravega_controller.rpc.service import SERVICE
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_security.access_rules import parse_access_rules
from pravega_security.accounts import Accounts
from pravega_security.accounts_file import Account, change_accounts_file
from pravega_security.delegation_tokens import (
    AUDIENCE,
    MASTER_CLAIM,
    SUBJECT,
    TokenMinter,
    TokenVerifier,
    encode_token,
)
from pravega_security.passwords import hash_password
from pravega_security.principals import (
    AuthenticationError,
    AuthenticationUnavailableError,
    Principal,
)
from pravega_security.resources import Level, stream_resource
from pravega_security.signing_keys import SigningKeys, create_key_file
from pravega_wire import controller_pb2 as pb

Invoke = Callable[..., Any]
OK = grpc.StatusCode.OK
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED


class SecureController:
    """A controller with users, and calls to it in threads."""

    def __init__(self, directory: Path) -> None:
        self.accounts = directory / "passwd"
        self.keys = directory / "keys"
        self.audit = directory / "audit.log"
        self.port = 0
        create_key_file(self.keys, now=0)
        self.add_user("admin", "prn::*,READ_UPDATE")
        self.add_user("reader", "prn::/scope:s,READ;prn::/scope:s/stream:t,READ")

    def add_user(self, user: str, rules: str) -> None:
        account = Account(user, hash_password(user, rounds=10), parse_access_rules(rules))
        change_accounts_file(self.accounts, lambda file: file.put(account))

    @property
    def config(self) -> ControllerConfig:
        return ControllerConfig(
            host="127.0.0.1",
            port=0,
            container_count=4,
            accounts=self.accounts,
            token_keys=self.keys,
            audit_log=self.audit,
        )

    @property
    def minter(self) -> TokenMinter:
        return TokenMinter(SigningKeys(self.keys), 600, lambda: wall_clock_ms() // 1000)

    def call(
        self, header: str | None, method: str, request: Message, reply: type[Message] | None = None
    ) -> tuple[grpc.StatusCode, Any]:
        """Return the status, and the answer or the sentence of the refusal."""
        service = HEALTH if method == "Check" else SERVICE
        metadata = () if header is None else (("authorization", header),)
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            invoke = channel.unary_unary(
                f"/{service.full_name}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=None if reply is None else reply.FromString,
            )
            try:
                return OK, invoke(request, timeout=20, metadata=metadata)
            except grpc.RpcError as error:
                return error.code(), error.details()  # type: ignore[attr-defined]

    async def ask(self, *arguments: Any) -> tuple[grpc.StatusCode, Any]:
        return await trio.to_thread.run_sync(lambda: self.call(*arguments))


def basic(user: str, password: str | None = None) -> str:
    pair = f"{user}:{user if password is None else password}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


SCOPE = pb.ScopeInfo(scope="s")
ADMIN, READER = basic("admin"), basic("reader")


@pytest.fixture
async def controller(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, tmp_path: Path
) -> AsyncIterator[SecureController]:
    secure = SecureController(tmp_path)
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    with trio.fail_after(60):
        _, secure.port = await nursery.start(
            partial(server.serve, secure.config, environment=environment)
        )
        assert (await secure.ask(ADMIN, "createScope", SCOPE))[0] is OK
        info = pb.StreamInfo(scope="s", stream="t")
        policy = pb.ScalingPolicy(minNumSegments=1)
        stream = pb.StreamConfig(streamInfo=info, scalingPolicy=policy)
        assert (await secure.ask(ADMIN, "createStream", stream))[0] is OK
        yield secure
    nursery.cancel_scope.cancel()


def change_signature(token: str) -> str:
    """Return a token with another signature; one of 256 ends with any given two characters."""
    head, _, signature = token.rpartition(".")
    return f"{head}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}"


async def test_what_is_proved_wrongly_refuses_every_call(controller: SecureController) -> None:
    in_an_hour = wall_clock_ms() // 1000 + 3600
    early = {"sub": SUBJECT, "aud": AUDIENCE, "nbf": in_an_hour, MASTER_CLAIM: "READ_UPDATE"}
    wrong = [
        basic("admin", "wrong"),
        basic("nobody"),
        "Basic !",
        "Basic " + base64.b64encode(b"admin").decode(),
        "Token x",
        "Token " + controller.minter.mint(stream_resource("s", "t"), Level.READ_UPDATE),
        "Token " + change_signature(controller.minter.mint_master()),
        "Token " + encode_token(early, SigningKeys(controller.keys).current),
    ]
    for header in wrong:
        for method, request in (("checkScopeExists", SCOPE), ("sealStream", pb.StreamInfo())):
            status, sentence = await controller.ask(header, method, request)
            assert status is UNAUTHENTICATED, (header[:40], status, sentence)
            assert "admin:" not in sentence
    status, _ = await controller.ask(wrong[0], "getControllerServerList", pb.ServerRequest())
    assert status is UNAUTHENTICATED


async def test_without_a_proof_only_what_anybody_may_do_is_done(
    controller: SecureController,
) -> None:
    health = pb.ServerRequest()  # as empty as the request of the health service
    for header in (None, "", "Digest abc", "basic " + READER.split()[1], "Basic"):
        assert (await controller.ask(header, "getControllerServerList", health))[0] is OK
        assert (await controller.ask(header, "Check", health))[0] is OK
        for method, request in (
            ("checkScopeExists", SCOPE),
            ("getURI", pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream="t"))),
            ("getDelegationToken", pb.StreamInfo(scope="s", stream="t")),
        ):
            status, sentence = await controller.ask(header, method, request)
            assert (status, "needs a user" in sentence) == (UNAUTHENTICATED, True)


async def test_a_reader_reads_and_changes_nothing(controller: SecureController) -> None:
    info = pb.StreamInfo(scope="s", stream="t")
    for _ in range(2):  # the second time the login is known
        assert (await controller.ask(READER, "checkStreamExists", info))[0] is OK
        uri = pb.SegmentId(streamInfo=info)
        assert (await controller.ask(READER, "getURI", uri))[0] is OK
        status, sentence = await controller.ask(READER, "sealStream", info)
        assert status is DENIED
        assert "reader" in sentence
        assert "READ_UPDATE" in sentence
        assert "prn::/scope:s/stream:t" in sentence
        other = pb.StreamInfo(scope="s", stream="tt")
        assert (await controller.ask(READER, "checkStreamExists", other))[0] is DENIED
        segment = pb.SegmentId(streamInfo=other)
        assert (await controller.ask(READER, "getURI", segment))[0] is DENIED
    lines = [json.loads(line) for line in controller.audit.read_text().splitlines()]
    refused = [each for each in lines if not each["allowed"]]
    assert {each["method"] for each in refused} == {"sealStream", "checkStreamExists", "getURI"}
    assert all(each["user"] == "reader" for each in refused)
    assert [each["method"] for each in lines if each["allowed"]] == ["createScope", "createStream"]


async def test_tokens_have_what_the_caller_has(controller: SecureController) -> None:
    verifier = TokenVerifier(SigningKeys(controller.keys), lambda: wall_clock_ms() // 1000)
    info = pb.StreamInfo(scope="s", stream="t")
    for header, level in ((READER, Level.READ), (ADMIN, Level.READ_UPDATE)):
        for _ in range(2):
            status, token = await controller.ask(
                header, "getDelegationToken", info, pb.DelegationToken
            )
            assert status is OK
            claims = verifier.verify(token.delegationToken)
            assert claims.level_for_segment("s/t/0.#epoch.0") is level
            assert claims.level_for_segment("s/tt/0.#epoch.0") is Level.NONE
            assert not claims.is_master
    writing = pb.StreamInfo(scope="s", stream="t", accessOperation=pb.StreamInfo.WRITE)
    assert (await controller.ask(READER, "getDelegationToken", writing))[0] is DENIED


@pytest.mark.parametrize("stream", ["t/", "t/0.#epoch.0", "/t"])
async def test_a_name_with_a_slash_gets_no_token(controller: SecureController, stream: str) -> None:
    rules = "prn::/scope:s/stream:t,NONE;prn::/scope:s/*,READ_UPDATE"
    controller.add_user("most", rules)
    info = pb.StreamInfo(scope="s", stream=stream)
    for _ in range(2):  # the second time the login is known
        status, _sentence = await controller.ask(basic("most"), "getDelegationToken", info)
        assert status is grpc.StatusCode.INVALID_ARGUMENT


async def test_reading_is_no_line_and_a_wrong_token_is(controller: SecureController) -> None:
    info = pb.StreamInfo(scope="s", stream="t")
    await controller.ask(
        ADMIN, "getReaderGroupConfig", pb.ReaderGroupInfo(scope="s", readerGroup="g")
    )
    await controller.ask(ADMIN, "checkTransactionState", pb.TxnRequest(streamInfo=info))
    wrong = "Token x"
    for method, request in (
        ("getURI", pb.SegmentId(streamInfo=info)),
        ("getDelegationToken", info),
    ):
        assert (await controller.ask(wrong, method, request))[0] is UNAUTHENTICATED
    # The thread that writes lines is behind the answers: the last line is there when all are.
    assert (await controller.ask(ADMIN, "createScope", pb.ScopeInfo(scope="last")))[0] is OK
    with trio.fail_after(30):
        while '"last"' not in controller.audit.read_text():  # noqa: ASYNC110
            await trio.sleep(0.01)
    lines = [json.loads(line) for line in controller.audit.read_text().splitlines()]
    assert [each["method"] for each in lines] == [
        "createScope",
        "createStream",
        "getURI",
        "getDelegationToken",
        "createScope",
    ]


async def wait_for_lines(controller: SecureController, count: int) -> list[dict[str, Any]]:
    """Return the lines of refusals once there are so many: a thread writes them."""
    with trio.fail_after(30):
        while True:
            lines = [json.loads(line) for line in controller.audit.read_text().splitlines()]
            refused = [each for each in lines if not each["allowed"]]
            if len(refused) >= count:
                return refused
            await trio.sleep(0.01)


async def test_a_refused_login_is_a_line_with_the_user_that_was_tried(
    controller: SecureController,
) -> None:
    info = pb.StreamInfo(scope="s", stream="t")
    tried = {
        basic("admin", "a-wrong-password"): "admin",
        basic("nobody", "a-wrong-password"): "nobody",
        "Token x": "segstore",
        "Basic " + base64.b64encode(b"a-wrong-password").decode(): None,
    }
    for header in tried:
        assert (await controller.ask(header, "sealStream", info))[0] is UNAUTHENTICATED
        # This one is answered in gRPC's thread when the login is known.
        segment = pb.SegmentId(streamInfo=info)
        assert (await controller.ask(header, "getURI", segment))[0] is UNAUTHENTICATED
    refused = await wait_for_lines(controller, 8)
    assert [each["user"] for each in refused] == [user for user in tried.values() for _ in range(2)]
    assert "a-wrong-password" not in controller.audit.read_text()


async def test_a_user_whose_logins_are_delayed_is_in_the_line(
    controller: SecureController,
) -> None:
    for _ in range(8):
        header = basic("admin", "a-wrong-password")
        assert (await controller.ask(header, "sealStream", pb.StreamInfo()))[0] is UNAUTHENTICATED
    refused = await wait_for_lines(controller, 8)
    assert "too many logins" in refused[-1]["reason"]
    assert {each["user"] for each in refused} == {"admin"}


async def test_a_process_of_the_store_may_do_everything(controller: SecureController) -> None:
    own = "Token " + controller.minter.mint_master()
    assert (await controller.ask(own, "createScope", pb.ScopeInfo(scope="own")))[0] is OK


async def test_lists_leave_out_what_the_caller_may_not_read(controller: SecureController) -> None:
    request = pb.StreamsInScopeRequest(scope=SCOPE)
    stream = pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope="s", stream="tt"),
        scalingPolicy=pb.ScalingPolicy(minNumSegments=1),
    )
    assert (await controller.ask(ADMIN, "createStream", stream))[0] is OK
    for header, count in ((READER, 1), (ADMIN, 2)):
        status, page = await controller.ask(
            header, "listStreamsInScope", request, pb.StreamsInScopeResponse
        )
        assert status is OK
        names = [each.stream for each in page.streams if not each.stream.startswith("_")]
        assert len(names) == count


async def test_a_removed_user_is_refused(controller: SecureController) -> None:
    assert (await controller.ask(READER, "checkScopeExists", SCOPE))[0] is OK
    change_accounts_file(controller.accounts, lambda file: file.remove("reader"))
    assert (await controller.ask(READER, "checkScopeExists", SCOPE))[0] is UNAUTHENTICATED


async def test_other_calls_are_answered_while_a_password_is_verified(
    controller: SecureController, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await controller.ask(READER, "checkScopeExists", SCOPE))[0] is OK
    may_go_on = threading.Event()
    verify = Accounts.verify

    def verify_late(accounts: Accounts, user: str, password: bytes) -> bool:
        assert may_go_on.wait(30)
        return verify(accounts, user, password)

    monkeypatch.setattr(Accounts, "verify", verify_late)
    controller.add_user("late", "prn::*,READ")
    answers: list[grpc.StatusCode] = []

    async def ask_late() -> None:
        answers.append((await controller.ask(basic("admin"), "checkScopeExists", SCOPE))[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_late)
        anonymous = pb.ServerRequest()
        assert (await controller.ask(None, "getControllerServerList", anonymous))[0] is OK
        may_go_on.set()
    assert answers == [OK]


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [("token_keys", "needs token_keys"), ("accounts", "passwd cannot be read")],
)
async def test_a_controller_that_cannot_know_its_users_does_not_start(
    tmp_path: Path, missing: str, sentence: str
) -> None:
    secure = SecureController(tmp_path)
    settings: dict[str, Any] = {"accounts": secure.accounts, "token_keys": secure.keys}
    if missing == "accounts":
        secure.accounts.unlink()
    else:
        settings[missing] = None
    config = ControllerConfig(host="127.0.0.1", port=0, **settings)
    with pytest.raises(ConfigurationError, match=sentence):
        await server.serve(config)


async def test_an_audit_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    secure = SecureController(tmp_path)
    config = ControllerConfig(
        host="127.0.0.1",
        port=0,
        accounts=secure.accounts,
        token_keys=secure.keys,
        audit_log=tmp_path / "missing" / "audit.log",
    )
    with pytest.raises(ConfigurationError, match=r"audit\.log cannot be written"):
        await server.serve(config)


class Failing:
    """An authenticator that fails as told."""

    method = "Other"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def authenticate(self, token: str, peer: str) -> Principal:
        raise self._error


class Context:
    """A call with a header, as far as authorization needs it."""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("other", "x"), ("authorization", "Other secret-token")]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AuthenticationError("no"), UnauthenticatedError),
        (AuthenticationUnavailableError("the provider is away"), UnverifiableError),
        (RuntimeError("secret-token"), UnauthenticatedError),
    ],
)
async def test_an_authenticator_that_fails_refuses_the_call_without_its_secrets(
    tmp_path: Path, error: Exception, kind: type[Exception]
) -> None:
    secure = SecureController(tmp_path)
    keys = SigningKeys(secure.keys)
    audit = AuditLog(None, now_ms=wall_clock_ms)
    decider = Authorization(
        {"Other": Failing(error)}, secure.minter, TokenVerifier(keys, lambda: 0), audit=audit
    )
    with pytest.raises(kind) as raised:
        await decider.find(Context())
    assert "secret" not in str(raised.value)


@pytest.fixture
def told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "TELL_SECONDS", 0.05)


async def test_failed_logins_are_told_by_their_number(
    told_soon: None, controller: SecureController
) -> None:
    told: list[str] = []
    with capture_logs() as logs, trio.fail_after(30):
        for number in range(3):
            header = basic(f"nobody-{number}")
            assert (await controller.ask(header, "createScope", SCOPE))[0] is UNAUTHENTICATED
        while sum(int(each.split()[0]) for each in told) < 3:
            await trio.sleep(0.01)
            lines = [json.loads(line) for line in controller.audit.read_text().splitlines()]
            told = [each["reason"] for each in lines if each["method"] == "login"]
    assert all(each.endswith("logins failed in 0.05 s") for each in told)
    counts = [each["count"] for each in logs if each["event"] == "logins failed"]
    assert sum(counts) == 3
