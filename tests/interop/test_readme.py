"""The README's first lines, run as they are printed."""

from pathlib import Path
from typing import Any

import pika

from tests.broker_process import BrokerProcess

README = Path(__file__).parents[2] / "README.md"


def test_the_quick_start_keeps_its_word(broker: BrokerProcess) -> None:
    """The first piece, kill -9, a start, and the second."""
    before, after = (
        part.partition("```")[0] for part in README.read_text().split("```python")[1:3]
    )
    names: dict[str, Any] = {}
    assert "@localhost" in before
    exec(before.replace("localhost", f"127.0.0.1:{broker.port}"), names)
    broker.kill()
    broker.start()
    names["parameters"] = pika.URLParameters(broker.url)  # it has another port here
    exec(after, names)
    assert names["body"] == b"one"
