"""An export has the bytes that its messages have if each is read, decoded and encoded alone."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.transfer.exporting import export, queues_of
from amqpstore_tools.transfer.lines import FORMATS, LineWriter, MessageColumns
from amqpstore_tools.transfer.properties import decode_properties, encode_properties

FIXTURES = Path(__file__).parents[3] / "fixtures"
STORES = [f"{version}/{name}" for version in ("v1", "v2") for name in ("golden", "torn", "damaged")]


def message(number: int) -> Message:
    """One of a program: most have the same shape, a body that is text, and ids of their own."""
    properties: dict[str, Any] = {
        "content_type": "application/json",
        "delivery_mode": 2,
        "headers": {"trace": f"{number:032x}", "try": number % 4, "at": {"timestamp": number}},
        "message_id": f"{number:036}",
        "type": f"order.{number % 50}",
    }
    if number % 7 == 0:
        properties["headers"]["said"] = f'"{number:05}"'
    if number % 11 == 0:
        properties["headers"]["ratio"] = {"double": number / 7}
    body = f'{{"order": {number}, "for": "{"é" * (number % 3)}"}}'.encode()
    if number % 5 == 0:
        body = b"\xff\0%d" % number
    return Message(Envelope("orders", f"eu.{number % 9}", encode_properties(properties)), body)


@pytest.fixture
def of_a_program(tmp_path: Path) -> Path:
    """A store with messages of three queues between each other, and then of one."""
    path = tmp_path / "store"
    options = Options(segment_bytes=1 << 16, reserve_bytes=0, least_free_bytes=0)
    with Store.open(str(path), options=options, worker=InlineWorker()) as opened:
        queues = [opened.create_queue({"vhost": "/", "name": f"q{one}"}) for one in range(3)]
        for number in range(1200):
            queue = queues[number % 3 if number < 600 else 0]
            opened.publish([queue], [message(number)], priority=number % 2)
            if number % 50 == 0:
                opened.sync()
        # Properties that repeat.
        alike = Envelope("", "q0", encode_properties({"delivery_mode": 2}))
        opened.publish([queues[0]], [Message(alike, b"%d" % one) for one in range(300)])
    return path


def one_by_one(image: StoreImage, is_json: bool) -> Iterator[bytes]:
    encode = msgspec.json.encode if is_json else msgspec.msgpack.encode
    for queue in image.queues:
        for entry in () if queue.is_hidden else queue.entries():
            read: Any = None
            for segment in image.recovered.segments:
                if segment.first_id <= entry.message_id < segment.end_id:
                    read = segment.read(entry.message_id, 1, image.decoder)
            if not isinstance(read, list):
                continue
            envelope, body = read[0].envelope, read[0].body
            numbers = {
                "level": queue.level or 0,
                "sequence": entry.sequence,
                "id": entry.message_id,
                "priority": entry.priority,
                "expires_ms": entry.expires_ms,
                "deliveries": entry.delivery_count,
            }
            line = {
                "type": "message",
                "vhost": queue.vhost,
                "queue": queue.name,
                **{name: number for name, number in numbers.items() if number},
                "exchange": envelope.exchange,
                "routing_key": envelope.routing_key,
                "properties": decode_properties(envelope.properties),
                "body": as_json(body) if is_json else body,
            }
            yield encode(line) + b"\n" * is_json


def as_json(body: bytes) -> Any:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": body}
    return {"base64": body} if "\0" in text else text


def messages_of(store: Path, format_name: str) -> tuple[bytes, bytes]:
    """Return the messages of an export, and what they are one by one."""
    out = io.BytesIO()
    found = []
    with StoreImage.open(str(store)) as image:
        writer = LineWriter(out, format_name)
        write_messages = writer.write_messages

        def noted(messages: MessageColumns) -> int:
            start = out.tell()
            size = write_messages(messages)
            found.append(out.getvalue()[start:])
            return size

        writer.write_messages = noted  # type: ignore[method-assign]
        export("", writer, queues_of(image))
        return b"".join(found), b"".join(one_by_one(image, format_name == "jsonl"))


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", STORES)
def test_golden_stores(tmp_path: Path, name: str, format_name: str) -> None:
    shutil.copytree(FIXTURES / name / "store", tmp_path / "store")
    exported, expected = messages_of(tmp_path / "store", format_name)
    assert exported
    assert exported == expected


@pytest.mark.parametrize("format_name", FORMATS)
def test_messages_of_a_program(of_a_program: Path, format_name: str) -> None:
    exported, expected = messages_of(of_a_program, format_name)
    assert len(exported) > 1500 * 100
    assert exported == expected
