"""Stores and queues as Spark's data frames: `spark.read.format("amqpstore")`, and streams of both.

Whoever reads this begins with `sessions`, which makes a Spark session (`java` finds a Java for it),
and `source`, where Spark comes in. README.md has the options and the columns.

- Reading a store: `plan` looks at all of it once, on the driver, and says which task reads which
  segments (`live`, what of them is live; `pushdown`, what a query does not need). `hold` keeps the
  segments of a running broker there meanwhile. In the tasks `scanning` finds the records of a
  segment and `messages`, `operations` and `findings` make Arrow batches of them.
- Streams: `tap` follows the log; `consume` takes from a queue and `publish` puts into an exchange,
  each exactly once, by what `ledger` keeps in the broker.

Executors import this package; nothing is kept between driver and tasks but what a partition says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqpstore_tools.spark.sessions import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    """Spark is imported with the first of them: other modules of the package do without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from amqpstore_tools.spark import sessions

    return getattr(sessions, name)
