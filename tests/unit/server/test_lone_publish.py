"""Calls that a publish that is alone costs, from its read to its confirm.

The real app, sockets and committer, on a disk in memory whose datasyncs end as those of the kernel
do. The rounds of a turn are run by this test, so trio's own calls are not counted:
`test_call_counts` has the calls of many messages, without the app.
"""

import socket

import pytest
import trio

from amqpstore_server.app import App
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.read_size import first_chunk_bytes
from amqpstore_tools.client import frames, wire
from tests.call_baselines import Baselines, Calls
from tests.calls import Counts
from tests.committers import LaterDatasyncs
from tests.one_client import messages, one_client, still_clock, wait_for_reads
from tests.waiting import wait_readable

MAX_MODULES = 26
"""Modules of the product that a lone publish enters, on the way of `server/README.md`."""

STAND_INS = {"amqpstore.system.clock"}
"""The modules that are entered because the clock is a simulated one."""

WARM_UP = 10
PUBLISHES = 20
LONG_S = 0.008

TWO_ROUNDS = LOOP_LIMITS._replace(short_round_s=60.0, reading_s=60.0)
"""Each publish takes two rounds, however slow the machine is."""

UNTIMED = TWO_ROUNDS._replace(suspect_s=60.0, probing_s=60.0)
"""On a slow machine a read takes longer, a declare waits for the disk, and more time passes between
two publishes: none of that is to be more calls.
"""


async def counted(counts: Counts) -> None:
    block = messages()
    async with one_client(UNTIMED) as (app, sock):
        for number in range(WARM_UP + PUBLISHES):
            sock.send(block.take(1))
            if number >= WARM_UP:
                with counts:
                    confirm(app, sock)
            else:
                confirm(app, sock)
        assert isinstance(app.committer._datasyncs, LaterDatasyncs)
        assert app.committer._datasyncs.started >= PUBLISHES


async def read_sizes(reads: int) -> list[int]:
    """Return how much is read at once after each of some reads that take long."""
    block = messages()
    sizes = []
    async with one_client(TWO_ROUNDS) as (app, sock):
        (client,) = app.connections
        receive = client.amqp.receive
        with still_clock() as clock:

            def takes_long(read: bytes, now: float) -> bool:
                clock.advance(LONG_S)
                return receive(read, now)

            client.amqp.receive = takes_long  # type: ignore[method-assign]
            for _ in range(reads):
                sock.send(block.take(1))
                wait_for_reads(app, 1)
                done = client.amqp.octets.recv_cnt + 1
                while client.amqp.octets.recv_cnt < done:
                    # As it takes long, it has to pause first, and the selector does not see it.
                    app.sockets._look(0)
                    app._rounds.run_once(app.committer, 0.0)
                    clock.advance(LONG_S)
                sizes.append(client._reading._read_size.byte_count)
    return sizes


def confirm(app: App, sock: socket.socket) -> None:
    """Run the rounds of one publish: the read and its batch, then the end of its sync."""
    for _ in range(2):
        assert app.sockets._look(60)
        app._rounds.run_once(app.committer, 0.0)
    wait_readable(sock)
    octets = sock.recv(4096, socket.MSG_DONTWAIT)
    (frame,) = frames.whole_frames(octets, 0, len(octets))
    assert frames.method_of(octets, frame) == wire.BASIC_ACK


@pytest.fixture
def counts() -> Counts:
    found = Counts()
    trio.run(counted, found)
    return found


def test_a_publish_that_is_alone_costs_no_more_calls_than_it_did(
    counts: Counts, call_baselines: Baselines
) -> None:
    call_baselines.check("a lone publish", Calls.of(counts, PUBLISHES), counts)


def entered(counts: Counts) -> list[str]:
    """Return the modules that most publishes enter: every tenth also fills the segment."""
    names = {name for name, count in counts.modules.items() if count > PUBLISHES / 2}
    return sorted(name for name in names - STAND_INS if name.startswith("amqpstore"))


def test_a_publish_that_is_alone_enters_no_more_modules_than_it_did(counts: Counts) -> None:
    assert len(entered(counts)) <= MAX_MODULES, entered(counts)


def test_a_module_that_each_publish_enters_is_counted(counts: Counts) -> None:
    before = entered(counts)
    with counts:
        for _ in range(PUBLISHES):
            first_chunk_bytes(b"", LOOP_LIMITS)
    assert {*entered(counts)} - {*before} == {first_chunk_bytes.__module__}


def test_a_client_whose_small_reads_take_long_is_read_in_smaller_pieces() -> None:
    """The next one may be larger. The first that takes long is noticed, the others are timed."""
    sizes = trio.run(read_sizes, 6)
    assert sizes[0] >= LOOP_LIMITS.min_read_bytes // 2
    assert sizes[-1] == LOOP_LIMITS.min_costly_read_bytes
