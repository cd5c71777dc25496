"""A queue collects what some rounds bring while clients send more than a round reads."""

import pytest
import trio

from amqpstore import Run
from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.frames import method_frame
from tests.one_client import messages, one_client, still_clock, wait_for_reads

ROUNDS = 10
START_S = 100.0


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of the messages in each run that is delivered."""
    found = []
    deliver = AmqpChannel.deliver

    def noted(channel: AmqpChannel, consumer: Consumer, first_tag: int, run: Run) -> None:
        found.append(run.count)
        deliver(channel, consumer, first_tag, run)

    monkeypatch.setattr(AmqpChannel, "deliver", noted)
    return found


async def publish(reading_s: float) -> None:
    """Publish a message in each of some rounds at one time, and have a round some time later.

    Args: reading_s, after which a round ends as one of a broker that is busy.
    """
    consume = methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True)
    block = messages()
    async with one_client() as (app, sock):
        sock.send(method_frame(1, consume.encode()))
        wait_for_reads(app, 1)
        with still_clock():
            assert app.sockets._look(0)
            app._rounds.run_once(app.committer, START_S - 1)
            app.sockets.limits = LOOP_LIMITS._replace(reading_s=reading_s)
            (client,) = app.connections
            for number in range(ROUNDS + 1):
                sock.send(block.take(1))
                wait_for_reads(app, 1)
                reads = client.amqp.octets.recv_cnt + 1
                assert app.sockets._look(0)
                app._rounds.run_once(app.committer, START_S + (number == ROUNDS))
                assert client.amqp.octets.recv_cnt == reads


def test_a_busy_broker_delivers_what_some_rounds_bring_as_one_run(delivered: list[int]) -> None:
    """The first round is the last of those that were handed out at once."""
    trio.run(publish, -1.0)
    assert delivered == [1, ROUNDS]


def test_one_that_is_not_busy_delivers_at_once(delivered: list[int]) -> None:
    trio.run(publish, 60.0)
    assert delivered == [1] * (ROUNDS + 1)
