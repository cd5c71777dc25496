"""Whether an alarm holds up what clients publish."""

from __future__ import annotations

from typing import Protocol


class AlarmState(Protocol):
    """Whether publishers have to wait, and why."""

    @property
    def is_blocking(self) -> bool:
        """Whether they have to wait: costs nothing to ask."""

    @property
    def reason(self) -> str: ...


class NoAlarm:
    """The state of alarms where there are none."""

    is_blocking = False
    reason = ""
