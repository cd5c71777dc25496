"""A login that is known to be right is decided in the round of reads that brings it, even before
the task of this client has its first turn: that comes only after several others.
"""

import socket

import pytest
import trio

from amqpstore_server.amqp import telling
from tests.conformance.wire_client import (
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_TUNE,
    PROTOCOL_HEADER,
    connection_open,
    start_ok,
    tune_ok,
)
from tests.one_client import one_client, still_clock, wait_for_reads


async def answers(password: str) -> list[tuple[int, ...]]:
    """Return the methods that a client gets for what it sends, each in a round of its own, while
    no task has its turn.
    """
    methods: list[tuple[int, ...]] = []
    sends = (
        PROTOCOL_HEADER,
        start_ok(response=f"\0guest\0{password}".encode()),
        tune_ok(10, 131_072, 0) + connection_open("/"),
    )
    async with one_client() as (app, _first), trio.open_nursery() as clients:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            app._admit(clients, None, listener.accept()[0], "127.0.0.1")
        with client, still_clock():
            for octets in sends:
                client.send(octets)
                wait_for_reads(app, 1)
                app.sockets._look(0)
                app._rounds.run_once(app.committer, trio.current_time())
                try:
                    answer = client.recv(4096, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                methods.append((int.from_bytes(answer[7:9]), int.from_bytes(answer[9:11])))
        clients.cancel_scope.cancel()
    return methods


@pytest.mark.parametrize(
    ("password", "expected"),
    [
        ("guest", [CONNECTION_START, CONNECTION_TUNE, CONNECTION_OPEN_OK]),
        ("wrong", [CONNECTION_START]),
    ],
)
def test_a_password_that_was_right_before_is_decided_at_once(
    password: str, expected: list[tuple[int, ...]]
) -> None:
    """A wrong login waits for its turn among those that are checked."""
    assert trio.run(answers, password) == expected


def test_no_event_is_made_that_nobody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(telling, "BrokerEvent", lambda key, _headers: made.append(key))
    assert len(trio.run(answers, "guest")) == 3
    assert made == []
