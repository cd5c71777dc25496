"""One Spark session for all tests: it takes seconds to start.

With several workers one of them runs all that is in here: see `tests/conftest.py`.
"""

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError
from pyspark.sql import SparkSession

from tests.broker_process import BrokerProcess

Connect = Callable[[], pika.BlockingConnection]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[SparkSession]:
    from amqpstore_tools.spark import session

    directory = str(tmp_path_factory.mktemp("spark"))
    settings = {
        "spark.local.dir": directory,
        "spark.sql.warehouse.dir": directory,
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        "spark.sql.shuffle.partitions": "1",
    }
    made = session("local[2]", name="tests", settings=settings)
    yield made
    made.stop()


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def broker(directory: str) -> Generator[BrokerProcess]:
    # What is purged is garbage at once: no test waits until a purge cannot be undone any more.
    environment = {"AMQPSTORE_PURGE_UNDO_S": "0"}
    with BrokerProcess(directory, f"{directory}.log", environment=environment) as process:
        process.start()
        yield process
        if process.running:
            assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr, process.log_tail()


@pytest.fixture
def connect(broker: BrokerProcess) -> Generator[Connect]:
    opened = []

    def opener() -> pika.BlockingConnection:
        opened.append(pika.BlockingConnection(pika.URLParameters(broker.url)))
        return opened[-1]

    yield opener
    for connection in opened:
        # The test may have ended the broker.
        with contextlib.suppress(AMQPError):
            connection.close()
