"""The admin socket waits for no client for ever, and has room for others afterwards."""

from __future__ import annotations

import select
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from amqpstore_server.administration import admin_socket
from amqpstore_server.administration.admin_socket import AdminSocket
from amqpstore_server.administration.framing import LENGTH, address_in
from amqpstore_server.administration.work import Work


async def never(_work: Work[object]) -> object:
    raise AssertionError("no request has come")


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.mark.trio
async def test_a_request_that_does_not_come_is_not_waited_for(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    directory = str(tmp_path)
    administration: Any = None  # is not asked
    with admin_socket.admin_socket(directory) as listener:
        assert listener is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(AdminSocket(listener, administration, never).run)
            clients = [
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                for _ in range(admin_socket._MAX_CLIENTS + 1)
            ]
            for client in clients:
                with address_in(directory) as address:
                    client.connect(address)
                client.sendall(LENGTH.pack(10) + b"{")
                client.setblocking(False)
            # The last one has its turn when the others are gone, and as much time as they.
            for waiting, at_least_s in ((clients[:-1], 1), (clients[-1:], 2)):
                while not all(map(is_closed, waiting)):
                    mock_clock.jump(0.5)
                    await trio.testing.wait_all_tasks_blocked(0.01)
                assert trio.current_time() >= at_least_s * admin_socket._REQUEST_S
            nursery.cancel_scope.cancel()
        for client in clients:
            client.close()


@pytest.mark.trio
async def test_an_answer_that_is_not_read_is_not_waited_for(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tmp_path)
    administration: Any = None  # is not asked

    async def answer(*_request: object) -> bytes:
        return bytes(16 << 20)

    monkeypatch.setattr(AdminSocket, "_answer", answer)
    with (
        admin_socket.admin_socket(directory) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
    ):
        assert listener is not None
        with address_in(directory) as address:
            client.connect(address)
        client.sendall(LENGTH.pack(2) + b"{}")
        hung_up = select.poll()
        hung_up.register(client, select.POLLRDHUP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(AdminSocket(listener, administration, never).run)
            while not hung_up.poll(0):
                await trio.testing.wait_all_tasks_blocked(0.01)
                mock_clock.jump(0.5)
            assert trio.current_time() >= admin_socket._ANSWER_S
            nursery.cancel_scope.cancel()
