"""Stores and queues as Spark's data frames: `spark.read.format("amqpstore")`, and streams of both.

Start reading with `sessions` and `source`. README.md has the options and the columns.

- `sessions`, `java`, `requirements`: a Spark session, the Java for it, and whether Spark is
  installed.
- `engine`, `cluster`: the options of jobs, and work that is distributed over executors.
- `source`: the format as Spark sees it; `reading`: stores as data frames; `streams`: streams of a
  log, a queue or an exchange; `task_files`: files of a snapshot, opened by another process.
- `check`, `drill`: `amqpstore check` and `amqpstore drill` on a cluster.

Executors import this package; driver and tasks share only what is in a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqpstore_tools.spark.sessions import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    """Import Spark only when one of its names is used: other modules of the package do without
    it.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from amqpstore_tools.spark import sessions

    return getattr(sessions, name)
