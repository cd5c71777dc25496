"""Names that queues and exchanges may have, as the configuration says."""

from pathlib import Path

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.broker_process import BrokerProcess


@pytest.mark.parametrize(
    ("rule", "taken", "refused"),
    [
        ("lenient", ["a b", "ä" * 120, "-x"], []),
        ("strict", ["Ab-9_.:", "-x"], ["a b", "ä", "x" * 128]),
        ("0-10", ["a b", "_ä"], ["-x", "ä"]),
    ],
)
def test_names_follow_the_rule_of_the_configuration(
    rule: str, taken: list[str], refused: list[str], tmp_path: Path
) -> None:
    config = tmp_path / "amqpstore.toml"
    config.write_text(f'names = "{rule}"\n')
    arguments = ["--config", str(config)]
    with BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"), arguments) as broker:
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            for name in taken:
                assert channel.queue_declare(name).method.queue == name
                channel.exchange_declare(name)
            assert channel.queue_declare("").method.queue.startswith("amq.gen-")
            for name in refused:
                with pytest.raises(ChannelClosedByBroker, match=f"406.*rule '{rule}'"):
                    connection.channel().queue_declare(name)
                with pytest.raises(ChannelClosedByBroker, match=f"406.*rule '{rule}'"):
                    connection.channel().exchange_declare(name)
