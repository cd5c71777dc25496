"""Work that is distributed over a Spark cluster, by default on this machine, with progress."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from amqpstore.errors import StoreError
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.spark.java import NoJavaError
from amqpstore_tools.spark.requirements import SparkMissingError
from amqpstore_tools.spark.sessions import start

_POLL_S = 0.1
_TASK_BYTES = 256 << 20
"""The size of a task, if there are enough items: progress is counted in tasks."""

_LEAST_BYTES = 256 << 10
"""The least weight of an item: some files are opened for it."""

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b.*:")
_CAUSED = "Caused by: "
_NO_PYTHON = re.compile(r'Cannot run program "[^"]*".*')
_NO_MODULE = "No module named"
_HINT = (
    "Executors run the Python that PYSPARK_PYTHON names, or else the one that this runs: "
    "amqpstore[spark] has to be installed for it there"
)

One = TypeVar("One")
Other = TypeVar("Other")

Tell = Callable[[int, int], None]
"""Called with how much of the work is done, and how much there is, in tasks of Spark."""


def by_bytes(progress: Progress, what: str, total: int) -> Tell:
    """Return a function that shows finished tasks as a part of `total` bytes."""
    return lambda done, tasks: progress(what, total * done // (tasks or 1), total)


class JobError(StoreError):
    """Spark did not start, or a task failed in every attempt."""

    def __init__(self, what: str, error: Py4JError | PySparkException) -> None:
        super().__init__(f"{what}: {_reason(str(error))}")


def _reason(text: str) -> str:
    """Return the useful part of the tracebacks of Python and Java."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if found := _NO_PYTHON.search(line):
            return f"{found[0]}. {_HINT}"
    raised = [line for line in lines if _RAISED.match(line)]
    caused = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    reason = (raised[-1:] or caused[:1] or lines[:1] or ["it does not say why"])[0]
    return f"{reason}. {_HINT}" if _NO_MODULE in reason else reason


class Cluster:
    """A Spark session that jobs run on."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._context = spark.sparkContext

    @property
    def is_local(self) -> bool:
        """Whether all of it is on this machine, and sees its processes."""
        return str(self._context.master).startswith("local")

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time."""
        return int(self._context.defaultParallelism)

    def spread(self, items: Sequence[One], size_of: Callable[[One], int]) -> RDD[One]:
        """Distribute items to tasks of about the same number of bytes, neighbours together."""
        weights = [max(size_of(item), _LEAST_BYTES) for item in items]
        total = sum(weights)
        tasks = min(len(items), max(total // _TASK_BYTES, 4 * self.cores, 1))
        if total < self.cores * _LEAST_BYTES * 4:
            tasks = 1
        groups: list[list[One]] = []
        done = 0
        for item, weight in zip(items, weights, strict=True):
            if not groups or done * tasks >= total * len(groups):
                groups.append([])
            groups[-1].append(item)
            done += weight
        parts = self._context.parallelize(groups, max(len(groups), 1))
        return parts.flatMap(lambda group: group)

    def one_by_one(self, items: Sequence[One]) -> RDD[One]:
        """Distribute items, each in a task of its own."""
        return self._context.parallelize(items, max(len(items), 1))

    def by_group(
        self,
        items: Sequence[One],
        size_of: Callable[[One], int],
        work: Callable[[Iterable[One]], Other],
        progress: Progress = lambda *_: None,
        what: str = "",
    ) -> list[Other]:
        """Work on groups of neighbouring items. Returns the result of each group.

        Args: progress, called with `what`, how many bytes are done, and all.
        """

        def of_task(some: Iterable[One]) -> Iterator[Other]:
            yield work(some)

        tell = by_bytes(progress, what, sum(map(size_of, items)))
        return self.collect(self.spread(items, size_of).mapPartitions(of_task), tell)

    def broadcast(self, value: One) -> Callable[[], One]:
        """Return a function by which every task can get a value."""
        held = self._context.broadcast(value)
        return lambda: held.value

    def collect(self, rdd: RDD[One], tell: Tell = lambda *_: None) -> list[One]:
        """Return all results. An interrupt ends the tasks. Raises: JobError."""
        out: list[One] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                out.extend(rdd.collect())
            except (Py4JError, PySparkException) as error:
                failed.append(JobError("a task of the job failed", error))
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                failed.append(error)

        # This thread shows how far the job is, and can be interrupted meanwhile.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                tell(*self._progress())
        except BaseException:
            self._context.cancelAllJobs()
            thread.join()
            raise
        if failed:
            raise failed[0]
        return out

    def _progress(self) -> tuple[int, int]:
        """Return the number of finished tasks, and of all tasks, in the stages that run now."""
        tracker = self._context.statusTracker()
        done = total = 0
        for number in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(number)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
        return done, total


@contextlib.contextmanager
def cluster(master: str, name: str, **settings: str) -> Iterator[Cluster]:
    """Start a session for one command, and end it afterwards. Args: master, as in `spark-submit
    --master`.

    Raises: SparkMissingError, if there is no Java for it; JobError, if Spark does not start.
    """
    try:
        spark = start(master, name=f"amqpstore {name}", settings=settings, is_brief=True)
    except NoJavaError as error:
        raise SparkMissingError(str(error)) from None
    except (Py4JError, PySparkException) as error:
        raise JobError(f"Spark does not start on {master}", error) from None
    try:
        yield Cluster(spark)
    finally:
        spark.stop()
