"""What checks a store: this process, or Spark."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator

from amqpstore_tools.check.check import Checked, check
from amqpstore_tools.spark.engine import SPARK, require_spark

CheckStore = Callable[..., Checked]
"""As `check.check`."""


@contextlib.contextmanager
def engine(arguments: argparse.Namespace) -> Iterator[CheckStore]:
    """What the options of `jobs.options.add_engine` name. Raises: SparkMissingError."""
    if arguments.engine != SPARK:
        yield check
        return
    require_spark()
    # Here, so that the other verbs start without Spark.
    from amqpstore_tools.spark.check import driver
    from amqpstore_tools.spark.cluster import cluster

    with cluster(arguments.master, "check") as spark:
        yield functools.partial(driver.check, spark)
