"""Definitions of clients in one round of reads are one commit, before which none is answered."""

import socket
from collections.abc import Sequence

import pytest
import trio

from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.broker import Defined
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import HEARTBEAT_FRAME, method_frame
from tests.one_client import some_clients, still_clock, wait_for_reads
from tests.waiting import wait_readable

CLIENTS = 5


def declare(sock: socket.socket, name: str) -> None:
    method = methods.QueueDeclare(queue=name, durable=True)
    sock.send(method_frame(1, method.encode()))


def has_answers(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1000, socket.MSG_PEEK))
    except BlockingIOError:
        return False


async def declares() -> list[tuple[int, bool]]:
    """Declare a queue with each client, and then a virtual host. Returns how many queues were in
    each commit, and whether any client had been answered before.
    """
    commits: list[tuple[int, bool]] = []
    async with some_clients(CLIENTS) as (app, socks):
        store = app.broker.services.store
        commit = store._catalog.commit

        def noted(changes: Sequence[Change]) -> None:
            queues = [one for one in changes if one.table == "queues"]
            commits.append((len(queues), any(map(has_answers, socks))))
            commit(changes)

        store._catalog.commit = noted  # type: ignore[method-assign]
        for number, sock in enumerate(socks):
            sock.setblocking(False)
            declare(sock, f"d{number}")
        wait_for_reads(app, CLIENTS)
        with still_clock():
            assert app.sockets._look(0)
            app._rounds.run_once(app.committer, trio.current_time())
        wait_readable(*socks, count=CLIENTS)
        assert all(map(has_answers, socks))
        assert len(app.broker.vhost("/").queues) == CLIENTS + 1
        # Outside of a round a definition is durable on return.
        app.broker.define(Defined(["v"]))
        del store._catalog.commit
    return commits


def test_what_clients_define_in_a_round_is_one_commit() -> None:
    assert trio.run(declares) == [(CLIENTS, False), (0, True)]


async def costly_definers(commit_s: float) -> int:
    """Return how many clients are costly after each has declared a queue in the same round."""
    async with some_clients(CLIENTS) as (app, socks):
        store = app.broker.services.store
        commit = store._catalog.commit
        for number, sock in enumerate(socks[1:]):
            declare(sock, f"d{number}")
        socks[0].send(HEARTBEAT_FRAME)
        wait_for_reads(app, CLIENTS)
        with still_clock() as clock:

            def slow(changes: Sequence[Change]) -> None:
                commit(changes)
                clock.advance(commit_s)

            store._catalog.commit = slow  # type: ignore[method-assign]
            assert app.sockets._look(0)
            app._rounds.run_once(app.committer, trio.current_time())
        del store._catalog.commit
        return sum(client._reading.is_costly for client in app.connections)


@pytest.mark.parametrize(("commit_s", "costly"), [(0.01, CLIENTS - 1), (0.0, 0)])
def test_who_defines_is_charged_for_the_commit(commit_s: float, costly: int) -> None:
    """The clients are charged in equal parts: no other client is served meanwhile."""
    assert trio.run(costly_definers, commit_s) == costly
