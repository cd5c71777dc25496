"""For tests of AMQP applications: the broker in the test's own process.

- `plugin`: loaded by pytest; `log`: the log of one broker.
- `broker`: the object that its fixtures return; `clock`, `disk`: virtual time, and a disk whose
  power can fail.

Nothing of the broker is imported before a fixture is used, or `MemoryBroker` is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqpstore_tools.testing.broker import MemoryBroker

__all__ = ["MemoryBroker"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from amqpstore_tools.testing import broker

    return getattr(broker, name)
