"""Whether Spark is installed, found out without it."""

from __future__ import annotations

import importlib.util

from amqpstore.errors import StoreError


class SparkMissingError(StoreError):
    """Spark, or a Java for it, is not installed."""


def require_spark() -> None:
    """Make sure that Spark can be imported. Raises: SparkMissingError."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise SparkMissingError(
                f"{package} is not installed, which this runs on: pip install 'amqpstore[spark]'"
            )
