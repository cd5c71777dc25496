"""Tests of what the broker does in one turn of trio's loop."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from amqpstore_server.broker.work.pumping import Pumping
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import method_frame
from tests.one_client import messages, one_client, wait_for_reads

MESSAGES = 20


class Turns(trio.abc.Instrument):
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        """Note that one has ended."""
        self.count += 1


def pumps_a_turn(monkeypatch: pytest.MonkeyPatch, *, is_backlog: bool) -> set[int]:
    """Return how often the broker was pumped in the turns of trio's loop, while a queue hands out
    one message each time and something can be read in each turn. Args: is_backlog, whether the
    queue has the messages already, or they come in one read.
    """
    turns = Turns()
    pumped: list[int] = []
    pump = Pumping.pump

    def noted(pumping: Pumping, *, collects: bool = False, must_moves_wait: bool = False) -> float:
        spent = pump(pumping, collects=collects, must_moves_wait=must_moves_wait)
        pumped.extend([turns.count] * pumping._agenda.handed_out)
        return spent

    monkeypatch.setattr(Pumping, "pump", noted)
    # On a busy machine one read may take as long as that of a costly client, who has to wait, or of
    # one that is to be read less at a time.
    limits = LOOP_LIMITS._replace(costly_s=60.0, long_small_read_s=60.0)
    consume = methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True)

    async def main() -> None:
        async with one_client(limits) as (app, sock):
            queue = app.broker.vhost("/").queues["q"]
            app.services.limits = app.services.limits._replace(max_handed_out=1)

            def read(octets: bytes, messages: int, consumers: int) -> None:
                sock.send(octets)
                wait_for_reads(app, 1)
                while (queue.ready_count, len(queue.consumers)) != (messages, consumers):
                    assert app.sockets._look(60)
                    app._rounds.run_once(app.committer, 1.0)

            if is_backlog:
                read(messages().take(MESSAGES), MESSAGES, 0)
                # A round of a busy machine leaves them as what has just come, to be collected.
                app.services.deferred.copies = 0
                sock.send(method_frame(1, consume.encode()))
            else:
                read(method_frame(1, consume.encode()), 0, 1)
                sock.send(messages().take(MESSAGES))
            pumped.clear()
            trio.lowlevel.add_instrument(turns)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(app._rounds.run, app.committer)
                while len(pumped) < MESSAGES:
                    app.sockets.wake()
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

    trio.run(main)
    return set(Counter(pumped).values())


def test_a_backlog_is_handed_out_in_one_go_a_turn_however_the_turn_came_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pumps_a_turn(monkeypatch, is_backlog=True) == {1}


def test_a_turn_hands_out_in_several_goes_what_a_large_read_has_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert max(pumps_a_turn(monkeypatch, is_backlog=False)) == LOOP_LIMITS.max_pumps
