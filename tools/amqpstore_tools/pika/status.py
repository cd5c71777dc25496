"""The outcome of a branch, as the server reports it."""

from __future__ import annotations

import enum


class XaStatus(enum.IntEnum):
    """The xa-status of a reply of class dtx (AMQP 0-10, domain xa-status)."""

    OK = 0
    RBROLLBACK = 1
    """The branch was rolled back."""
    RBTIMEOUT = 2
    """The branch was rolled back, as its timeout had passed."""
    HEURHAZ = 3
    """The branch may have been decided without the transaction manager."""
    HEURCOM = 4
    """The branch was committed without the transaction manager."""
    HEURRB = 5
    """The branch was rolled back without the transaction manager."""
    HEURMIX = 6
    """The branch was committed in part and rolled back in part, without the transaction manager."""
    RDONLY = 7
    """The branch to be prepared had done no work. It is over, and must not be decided."""

    @property
    def is_rollback(self) -> bool:
        return self in (XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT)

    @property
    def is_heuristic(self) -> bool:
        return XaStatus.HEURHAZ <= self <= XaStatus.HEURMIX
