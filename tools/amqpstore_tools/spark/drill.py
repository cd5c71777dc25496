"""The tasks of `amqpstore drill --engine spark`, distributed over a cluster."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence

from amqpstore_tools.drill.run import DrillSettings
from amqpstore_tools.drill.verdict import Account
from amqpstore_tools.spark.cluster import Cluster


class SparkTasks:
    """Runs the tasks of a drill on a cluster (see `TaskExecutor`)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def width(self) -> int:
        return self._cluster.cores

    def run(
        self,
        tasks: Sequence[DrillSettings],
        work: Callable[[DrillSettings], Account | str],
        tell: Callable[[], None],
    ) -> list[Account | str]:
        """Run tasks, each in a worker. Raises: JobError."""

        def in_worker(task: DrillSettings) -> Account | str:
            logging.getLogger("amqpstore").addHandler(logging.NullHandler())
            gc.set_threshold(100_000, 50, 100)
            return work(task)

        rdd = self._cluster.one_by_one(tasks).map(in_worker)
        return self._cluster.collect(rdd, lambda *_: tell())
