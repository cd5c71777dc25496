"""Tests of how long the management API waits for a client, and for what a request asks for, and of
what happens then.
"""

from __future__ import annotations

import ssl
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
import trustme
from starlette.requests import Request

from amqpstore.system.datasyncs import KernelDatasyncs
from amqpstore.system.files import OsFile
from amqpstore_server.management import app, checks, door
from amqpstore_server.management.checks import StoreChecks
from amqpstore_server.management.door import ManagementDoor
from amqpstore_server.management.pages import sessions
from amqpstore_server.management.pages.sessions import COOKIE, Sessions
from amqpstore_server.management.resources import health, publishing
from tests.served import TIMEOUT_S, ServedApp
from tests.unit.management.test_health_checks import Asking

SOCKETS: Any = SimpleNamespace(hurry=lambda _one: None, end_hurry=lambda _one: None)
NAMES: Any = SimpleNamespace()


@pytest.mark.trio
async def test_a_client_that_takes_nothing_of_its_answer_is_disconnected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = trio.socket.socketpair()
    stream = door._Stream(ours, NAMES, SOCKETS)
    with theirs:
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(bytes(64 << 20))
        assert ours.fileno() == -1
    assert trio.current_time() == pytest.approx(door._SEND_S)


@pytest.mark.trio
async def test_a_tls_handshake_has_a_limited_time(autojump_clock: trio.testing.MockClock) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("a.example").configure_cert(context)
    ours, theirs = trio.socket.socketpair()
    stream = door._Stream(ours, NAMES, SOCKETS)
    has_left = trio.Event()
    visitor: Any = SimpleNamespace(disconnected=has_left.set)
    listener: Any = SimpleNamespace(
        certificates=SimpleNamespace(context=context), is_passed_on=False
    )
    serving: Any = SimpleNamespace(_streams={stream: visitor}, _has_none=trio.Event())
    with theirs:
        await ManagementDoor._serve(serving, stream, listener, visitor)
        assert await theirs.recv(1) == b""
    assert has_left.is_set()
    assert trio.current_time() == pytest.approx(door._HANDSHAKE_S)


@pytest.mark.trio
async def test_a_stop_waits_for_requests_for_a_limited_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    closed: list[float] = []
    stream = SimpleNamespace(close_now=lambda: closed.append(trio.current_time()))
    serving: Any = SimpleNamespace(_streams=[stream], _has_none=trio.Event())
    await ManagementDoor.finish(serving)
    assert closed == [pytest.approx(door._FINISH_S)]


@pytest.mark.trio
async def test_the_rest_of_a_body_that_was_answered_is_read_for_a_limited_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def receive() -> Any:
        await trio.sleep_forever()

    await app._Body(receive).read_rest(1000)
    assert trio.current_time() == pytest.approx(app._REST_S)


class PageLogin:
    """The only session of the pages, of a user who has logged in with a password or with a token;
    `now_ms` is its clock.
    """

    def __init__(self, directory: Path, *, is_internal: bool = True) -> None:
        self.now_ms = 1_700_000_000_000
        clock = SimpleNamespace(wall_ms=lambda: self.now_ms)
        store = SimpleNamespace(clock=clock, directory=str(directory))
        context: Any = SimpleNamespace(
            users=SimpleNamespace(password_digest=lambda _user, _salt: b"digest"),
            broker=SimpleNamespace(services=SimpleNamespace(store=store)),
        )
        guest = SimpleNamespace(user="guest", is_internal=is_internal)

        async def identity(*_login: object, **_way: object) -> Any:
            return guest

        logins: Any = SimpleNamespace(identity=identity, identity_of=lambda *_who, **_way: guest)
        self._pages = Sessions(context, logins)
        self._scope: dict[str, Any] = {
            "type": "http",
            "scheme": "http",
            "path": "/",
            "headers": [],
        }

    async def log_in(self) -> None:
        public: Any = SimpleNamespace(prefix="", is_secure=False)
        answer = await self._pages.log_in(Request(self._scope), public, "guest", "guest", 0.0)
        cookie = answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
        self._scope["headers"] = [
            (b"host", b"a"),
            (b"cookie", f"{COOKIE}={cookie}".encode()),
        ]

    async def is_found(self) -> bool:
        return await self._pages.found(Request(self._scope), 0.0) is not None


@pytest.mark.trio
async def test_a_session_of_the_pages_ends_when_it_was_not_used(tmp_path: Path) -> None:
    login = PageLogin(tmp_path)
    await login.log_in()
    for passed_ms, is_found in ((sessions._IDLE_MS - 1, True), (sessions._IDLE_MS, False)):
        login.now_ms += passed_ms
        assert await login.is_found() == is_found


@pytest.mark.trio
@pytest.mark.parametrize("is_internal", [True, False])
async def test_the_sessions_of_the_pages_are_not_written_at_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_internal: bool
) -> None:
    """A token's session is not in the file at all."""
    login = PageLogin(tmp_path, is_internal=is_internal)
    await login.log_in()
    written: list[object] = []
    monkeypatch.setattr(sessions, "write_sessions", lambda _directory, kept: written.append(kept))
    for _ in range(3):
        assert await login.is_found()
    assert written == []
    login.now_ms += sessions._IDLE_MS // 2 + 1
    assert await login.is_found()
    assert len(written) == is_internal


@pytest.mark.trio
async def test_a_check_of_the_store_that_takes_too_long_is_ended_and_says_so(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_command: object, **_options: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "run_process", run)
    store: Any = SimpleNamespace(directory="/data", clock=SimpleNamespace(wall_ms=lambda: 7))
    checking = StoreChecks()
    checking.findings = ["of the check before"]
    await checking.run(store)
    assert trio.current_time() == pytest.approx(checks._CHECK_S)
    found = vars(checking)
    assert (found["findings"], found["problem"]) == (None, "it took more than 3600 s")
    assert not checking.is_running


def test_a_message_that_does_not_come_back_fails_the_aliveness_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def carry_out(*_request: object) -> None:
        pass

    class Channel:
        """A channel on which nothing arrives."""

        def __init__(self, *_arguments: object) -> None:
            self.publish = lambda *_message: None
            self.get = lambda _queue, *, no_ack: None
            self.close = lambda: None

    for name, there in (("carry_out", carry_out), ("Channel", Channel)):
        monkeypatch.setattr(health, name, there)
    topology = SimpleNamespace(queue=lambda _name, _right: None)
    monkeypatch.setattr(health, "topology_of", lambda _call: topology)
    asking: Any = Asking()
    asking.vhost = SimpleNamespace(name="/")
    asking.request = SimpleNamespace(headers={})
    asking.context.wake = lambda: None
    access = SimpleNamespace(check=lambda *_right: None)
    asking.identity = SimpleNamespace(access=lambda _vhost: access)

    async def ask() -> Any:
        answer = await health.aliveness(asking)
        assert trio.current_time() >= health._ALIVENESS_S
        return answer

    status, body = trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (status, body["reason"]) == (503, "the message did not arrive")


def test_a_publish_that_does_not_reach_the_disk_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not know whether the message will be durable."""
    monkeypatch.setattr(KernelDatasyncs, "open", lambda _signal: None)  # the kernel cannot be held
    monkeypatch.setattr(publishing, "_CONFIRM_S", 0.05)
    is_over = threading.Event()
    datasync = OsFile.datasync

    def sync(file: OsFile) -> None:
        assert is_over.wait(TIMEOUT_S)
        datasync(file)

    message = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
    message |= {"properties": {"delivery_mode": 2}}  # type: ignore[dict-item]
    with ServedApp(str(tmp_path / "data")) as served:
        try:
            assert served.request("PUT", "/queues/%2F/q", {"durable": True}).ok
            publish = partial(served.request, "POST", "/exchanges/%2F/amq.default/publish", message)
            assert publish().ok
            monkeypatch.setattr(OsFile, "datasync", sync)
            answer = publish()
            assert answer.status_code == 503
            assert answer.json()["reason"] == "the message is not on disk yet"
        finally:
            is_over.set()
