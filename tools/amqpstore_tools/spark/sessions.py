"""A Spark session that knows the format `amqpstore`, on this machine or on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from amqpstore_tools.spark.java import java_home
from amqpstore_tools.spark.source import AmqpstoreSource

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}
"""For driver and executors in one process: nothing listens to others."""

_LOGGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")

_STARTS_FAST = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a Java that only distributes work and ends soon: optimizing compilation would cost more than
it saves.
"""


def session(
    master: str = "local[*]",
    *,
    name: str = "amqpstore",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the session of this process; it is created if necessary.

    Args: master, as in `spark-submit --master`; settings, that override those of this module.
    Raises: NoJavaError.
    """
    spark = start(master, name=name, settings=settings)
    register(spark)
    return spark


def start(
    master: str,
    *,
    name: str,
    settings: Mapping[str, str] | None = None,
    is_brief: bool = False,
) -> SparkSession:
    """Start a session that does not know the format, which would take Spark one more second.

    Args: is_brief, whether it is for one job whose work is done in Python.
    """
    is_local = master.startswith("local")
    os.environ["JAVA_HOME"] = java_home(is_quiet=is_brief)
    # Executors run the same Python, with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    chosen = _SETTINGS | (_LOCAL_SETTINGS if is_local else {}) | dict(settings or {})
    if is_local or (is_brief and not {"SPARK_CONF_DIR", "SPARK_HOME"} & {*os.environ}):
        java = f"-Dlog4j2.configurationFile={_LOGGING} {_STARTS_FAST if is_brief else ''}"
        chosen.setdefault("spark.driver.extraJavaOptions", java.strip())
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Register `spark.read.format("amqpstore")` and the other formats with a session."""
    spark.dataSource.register(AmqpstoreSource)
