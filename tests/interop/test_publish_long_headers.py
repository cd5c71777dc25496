"""Messages of a file whose headers do not fit into a frame of the broker that they go to."""

from pathlib import Path

import pika
import pytest

from amqpstore_tools.__main__ import main
from tests.broker_process import BrokerProcess


def bodies(broker: BrokerProcess) -> list[bytes | None]:
    """Take all messages of the queue."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        count = channel.queue_declare("q", durable=True).method.message_count
        return [channel.basic_get("q", auto_ack=True)[2] for _ in range(count)]


def test_it_is_said_how_far_the_file_was_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "messages.jsonl")
    with BrokerProcess(str(tmp_path / "from"), str(tmp_path / "log")) as broker:
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for number, size in enumerate((10, 10, 20_000, 10)):
                properties = pika.BasicProperties(headers={"h": "x" * size}, delivery_mode=2)
                channel.basic_publish("", "q", str(number).encode(), properties)
        broker.terminate()
    assert main(["export", str(tmp_path / "from"), file]) == 0
    with BrokerProcess(str(tmp_path / "to"), str(tmp_path / "log2")) as broker:
        broker.environment["AMQPSTORE_FRAME_MAX"] = "8192"
        broker.start()
        assert bodies(broker) == []
        capsys.readouterr()
        publish = ["publish", "--url", broker.url, file]
        assert main(publish) == 5
        errors = capsys.readouterr().err
        assert "The first 2 messages were confirmed, and no other was published" in errors
        assert bodies(broker) == [b"0", b"1"]
        assert "continue with --skip 2, or leave this message out with --skip 3" in errors
        assert main([*publish, "--skip", "3"]) == 0
        assert bodies(broker) == [b"3"]
