"""What the broker does in one turn of trio's loop."""

from __future__ import annotations

import pytest
import trio

import amqpstore_server.turn
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


def turns_of_pumps(monkeypatch: pytest.MonkeyPatch, short_s: float) -> list[int]:
    """Return in which turn of trio's loop each pump was, of a queue that has more to hand out after
    each, while something can be read in each turn. Args: short_s, which turns count as short.
    """
    turns = Turns()
    pumped: list[int] = []
    pump = Broker.pump

    def noted(broker: Broker, *, collects: bool = False, rests: bool = False) -> float:
        pumped.append(turns.count)
        return pump(broker, collects=collects, rests=rests)

    monkeypatch.setattr(Broker, "pump", noted)
    monkeypatch.setattr(amqpstore_server.turn, "_SHORT_S", short_s)

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
    return pumped


def test_messages_are_handed_out_once_however_the_turn_came_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pumped = turns_of_pumps(monkeypatch, 0.0)
    assert len(pumped) == len(set(pumped))


def test_a_short_turn_hands_out_all_that_a_large_read_has_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pumped = turns_of_pumps(monkeypatch, 60.0)
    assert len(set(pumped)) <= 3
