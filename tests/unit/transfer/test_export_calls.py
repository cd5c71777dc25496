"""Calls that an export costs for each message, which must not grow back.

The messages are like those of applications: each has its own message-id, timestamp and headers, and
none of its neighbours' bytes; most have one shape. Calls are the same however busy the machine is.
The ceilings hold for messages of one queue, and of ten whose messages lie between each other.
"""

import io
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.transfer.exporting import export, queues_of
from amqpstore_tools.transfer.lines import FORMATS, LineWriter
from amqpstore_tools.transfer.properties import encode_properties
from tests.calls import Counts

COUNT = 2000

CEILINGS = {
    (1, "jsonl"): (2, 26),
    (1, "msgpack"): (5, 29),
    (10, "jsonl"): (2, 28),
    (10, "msgpack"): (6, 34),
}
"""Calls of Python functions and of built-in ones for each message, by queues and format."""


def message(number: int) -> Message:
    headers = {
        "traceparent": f"00-{number:032x}-01",
        "attempt": number,
        "at": {"timestamp": number},
    }
    properties = {
        "content_type": "application/json",
        "headers": headers,
        "delivery_mode": 2,
        "message_id": f"{number:032x}",
        "timestamp": 1_795_728_632 + number,
    }
    body = f'{{"order": {number}}}'.encode() if number % 3 else b"\xff\0%d" % number
    body *= 1 + number % 7
    return Message(Envelope("orders", f"eu.{number}", encode_properties(properties)), body)


@pytest.fixture(params=(1, 10))
def store(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, int]:
    options = Options(reserve_bytes=0, least_free_bytes=0)
    with Store.open(str(tmp_path / "store"), options=options, worker=InlineWorker()) as opened:
        queues = [
            opened.create_queue({"vhost": "/", "name": f"q{one}"}) for one in range(request.param)
        ]
        for number in range(COUNT):
            opened.publish([queues[number * 7 % len(queues)]], [message(number)])
            if number % 50 == 0:
                opened.sync()
    return str(tmp_path / "store"), request.param


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_message_costs_few_calls(store: tuple[str, int], format_name: str) -> None:
    directory, queues = store
    out = io.BytesIO()
    counts = Counts(without=("tests",))
    with StoreImage.open(directory) as image:
        found = queues_of(image)
        writer = LineWriter(out, format_name)
        with counts:
            exported = export("", writer, found)
    assert exported.total == COUNT
    python, built_in = CEILINGS[queues, format_name]
    assert counts.python.total() / COUNT < python, counts.python.most_common(9)
    assert counts.built_in.total() / COUNT < built_in, counts.built_in.most_common(9)
