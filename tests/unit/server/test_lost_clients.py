"""A client that closes its socket without a word is gone once that is read, before any other task
has its turn: if it comes back at once, its exclusive queue is free, and its messages are ready.
"""

from __future__ import annotations

import socket
import struct

import pytest
import trio

from amqpstore_server.app import App
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import method_frame
from tests.one_client import messages, some_clients, wait_for_reads

DECLARE = method_frame(1, methods.QueueDeclare(queue="mine", exclusive=True).encode())
CONSUME = method_frame(1, methods.BasicConsume(queue="q", consumer_tag="c").encode())
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, so that a close sends a reset instead of the end of the stream."""


def read_of_one(app: App) -> None:
    """Do one round in which one client is read."""
    wait_for_reads(app, 1)
    assert app.sockets._look(60)
    app._rounds.run_once(app.committer, 1.0)


@pytest.mark.parametrize("is_reset", [False, True], ids=["end of the stream", "reset"])
def test_it_is_released_in_the_round_that_reads_of_it(*, is_reset: bool) -> None:
    async def main() -> None:
        async with some_clients(2) as (app, (leaves, stays)):
            vhost = app.broker.vhost("/")
            queue = vhost.queues["q"]
            leaves.sendall(DECLARE + CONSUME + messages().take(2))
            while queue.unacked_count < 2:
                read_of_one(app)
            assert "mine" in vhost.queues
            if is_reset:
                leaves.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                leaves.close()
            else:
                leaves.shutdown(socket.SHUT_WR)
            read_of_one(app)
            assert "mine" not in vhost.queues
            assert not queue.consumers
            assert (queue.ready_count, queue.unacked_count) == (2, 0)
            stays.sendall(DECLARE)
            read_of_one(app)
            assert "mine" in vhost.queues

    trio.run(main)
