"""What the broker does in one turn of trio's loop."""

from __future__ import annotations

import pytest
import trio

from amqpstore_server.broker.broker import Broker
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import method_frame
from tests.one_client import messages, one_client

MESSAGES = 20


class Turns(trio.abc.Instrument):
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        """Note that one has ended."""
        self.count += 1


def test_messages_are_handed_out_once_however_the_turn_came_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue has more to hand out after each turn, and something can be read in each."""
    turns = Turns()
    pumped: list[int] = []
    pump = Broker.pump

    def noted(broker: Broker, *, collects: bool = False, rests: bool = False) -> float:
        pumped.append(turns.count)
        return pump(broker, collects=collects, rests=rests)

    monkeypatch.setattr(Broker, "pump", noted)

    async def main() -> None:
        async with one_client() as (app, sock):
            queue = app.broker.vhost("/").queues["q"]
            app.context.limits = app.context.limits._replace(max_handed_out=1)
            sock.send(messages().take(MESSAGES))
            while queue.ready_count < MESSAGES:
                assert app.sockets._look(60)
                app._turn.round(app.committer, 1.0)
            consume = methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True)
            sock.send(method_frame(1, consume.encode()))
            pumped.clear()
            trio.lowlevel.add_instrument(turns)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(app._turn.run, app.committer)
                while queue.ready_count:
                    app.sockets.wake()
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(pumped) >= MESSAGES
    assert len(pumped) == len(set(pumped))
