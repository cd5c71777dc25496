"""A store whose log lacks what was durable is not changed: a checkpoint would end what is known."""

from __future__ import annotations

import shlex

from amqpstore import Store
from amqpstore_tools.offline.exits import ToolError


class ShortLogError(ToolError):
    """The log of a store lacks messages or batches that were durable, and no operator has accepted
    it.

    The notes that tell of them are compared with the log behind the last checkpoint. The next one
    would leave nothing to compare: the store would be called sound.
    """


def refuse_short_log(directory: str, store: Store) -> None:
    """Make sure that the log of a store that was just opened lacks nothing that was durable.

    Raises: ShortLogError; the store is closed then, without a checkpoint.
    """
    if missing := store.recovery_report.shortfall:
        store.abandon()
        path = shlex.quote(directory)
        raise ShortLogError(
            f"{directory}: {missing.text}. Nothing was changed. Put back what is missing in "
            f"segments/, or accept the loss with a repair (amqpstore repair {path} --plan "
            f"plan.json, then amqpstore repair {path} --apply plan.json), and run this again."
        )
