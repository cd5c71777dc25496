"""Clients do not disturb each other."""

import threading
import time

from tests.conformance.wire_client import WireClient, basic_consume
from tests.interop.confirming_publisher import ConfirmingPublisher, Outgoing
from tests.interop.conftest import Connect
from tests.interop.pika_client import Inbox, drain

LARGE = bytes(range(256)) * (16 << 12)  # 16 MiB
LARGE_COUNT = 4
SLOWEST_ROUND_TRIP_S = 3.0


def test_large_bodies_do_not_hold_up_anothers_requests(
    url: str, open_connection: Connect, name: str
) -> None:
    """C157: round trips go on while 16 MiB bodies come in on another connection."""
    large_queue = f"{name}.large"
    channel = open_connection().channel()
    channel.queue_declare(large_queue, durable=True)
    channel.queue_declare(name, auto_delete=True)
    replies = Inbox(channel, name, auto_ack=True)
    publisher = ConfirmingPublisher(url, [Outgoing("", large_queue, LARGE)] * LARGE_COUNT, window=2)
    thread = threading.Thread(target=publisher.run)
    thread.start()
    round_trips_s: list[float] = []
    while thread.is_alive() or len(round_trips_s) < 10:
        started = time.monotonic()
        channel.basic_publish("", name, b"ping")
        replies.wait_for(len(round_trips_s) + 1)
        round_trips_s.append(time.monotonic() - started)
    thread.join()
    assert publisher.confirmed == list(range(LARGE_COUNT))
    assert max(round_trips_s) < SLOWEST_ROUND_TRIP_S
    assert [message.body == LARGE for message in drain(channel, large_queue)] == [True] * 4
    channel.queue_delete(large_queue)


def test_a_client_that_does_not_read_holds_up_nobody(
    url: str, open_connection: Connect, name: str
) -> None:
    """C157: 32 MiB wait for a consumer whose socket is full; the others' traffic goes on."""
    channel = open_connection().channel()
    channel.queue_declare(f"{name}.unread")
    with WireClient.connected(url, channels=1) as stuck:
        stuck.send(basic_consume(1, f"{name}.unread", "tag"))
        for _ in range(32):
            channel.basic_publish("", f"{name}.unread", LARGE[: 1 << 20])
        channel.queue_declare(name, exclusive=True)
        replies = Inbox(channel, name, auto_ack=True)
        for count in range(1, 50):
            channel.basic_publish("", name, b"ping")
            replies.wait_for(count)
    channel.queue_delete(f"{name}.unread")
