"""Options of jobs, which do not need Spark."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amqpstore_tools.spark.requirements import require_spark

if TYPE_CHECKING:
    from amqpstore_tools.check.executor import Executor

PROCESS, SPARK = ENGINES = ("process", "spark")

_LOCAL = "local[*]"


def add_engine(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that selects Spark. Args: what, runs on it then."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=PROCESS,
        help=f"process: everything in this process; spark: {what} (default: %(default)s)",
    )
    add_master(parser)


@contextlib.contextmanager
def executor_of(arguments: argparse.Namespace, name: str) -> Iterator[Executor]:
    """Start the executor that the options of `add_engine` name. Args: name, of the job. Raises:
    SparkMissingError.
    """
    if arguments.engine != SPARK:
        # Imported here, as other verbs have these options and check nothing.
        from amqpstore_tools.check.executor import ProcessExecutor

        yield ProcessExecutor()
        return
    require_spark()
    # Imported here, so that the other verbs start without Spark.
    from amqpstore_tools.spark.check import SparkExecutor
    from amqpstore_tools.spark.cluster import cluster

    with cluster(arguments.master, name) as spark:
        yield SparkExecutor(spark)


def add_master(parser: argparse.ArgumentParser) -> None:
    """Add the option for the Spark master."""
    parser.add_argument(
        "--master",
        default=_LOCAL,
        metavar="URL",
        help="Spark cluster, whose executors have amqpstore installed and see the same "
        "directories (default: %(default)s, this machine)",
    )
