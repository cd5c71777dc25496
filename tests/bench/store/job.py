"""A job for a process of `bench store`, and its result: the types that both sides of the pipe
share.
"""

from collections.abc import Callable
from typing import NamedTuple

Figures = dict[str, object]
"""JSON. Names end in their unit; `X_ms` are percentiles of durations."""

Tell = Callable[[int], None]
"""Called with how many messages are done."""


class Job(NamedTuple):
    """The work to do on the store in `directory`; see `StoreSettings` for the numbers."""

    name: str
    directory: str
    messages: int = 0
    size: int = 1024
    batch: int = 1000
    inline: bool = False
    queues: int = 1
    immortal: int = 0
    stays_open: bool = False  # whether the store is left open, for the process to be killed
