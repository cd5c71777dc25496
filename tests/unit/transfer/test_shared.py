"""Stores of programs without a broker: their queues and histories are exported, and come back."""

from __future__ import annotations

import io
from pathlib import Path

from amqpstore import SharedStore
from amqpstore_tools.check.engine import check
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.transfer.exporting import export, queues_of
from amqpstore_tools.transfer.importing import import_lines
from amqpstore_tools.transfer.lines import LineWriter, read_lines


def exported(directory: str) -> tuple[dict[str, int], bytes]:
    """Messages by queue, and the file."""
    out = io.BytesIO()
    with StoreImage.open(directory) as image:
        found = export("", LineWriter(out, "jsonl"), queues_of(image))
    return found.messages, out.getvalue()


def test_queues_and_histories_come_back(tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    for directory in (one, other):
        with SharedStore.open(directory) as shared:
            shared.declare("orders", history_length=10)
            shared.declare("receipts", history_length=10)
    with SharedStore.open(one) as shared:
        with shared.transaction() as transaction:
            transaction.send("orders", [b"one", b"two", b"three"])
        with shared.transaction() as transaction:
            transaction.receive("orders", timeout_s=1)
            transaction.send("receipts", [b"paid"])
    messages, content = exported(one)
    assert sorted(messages.values()) == [0, 1, 1, 2]
    import_lines(other, (line for line, _ in read_lines(io.BytesIO(content))), create=False)
    assert exported(other)[0] == messages
    assert not list(check(other).findings)
    with SharedStore.open(other) as shared:
        assert [one.message.body for one in shared.history("orders", first_ms=0)] == [b"one"]
