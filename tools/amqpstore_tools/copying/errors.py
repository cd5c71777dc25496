"""Errors of copying and restoring, besides the engine's own."""

from __future__ import annotations

from amqpstore_tools.offline.exits import ToolError


class CopyError(ToolError):
    """A copy was not made, or not restored. The message says why, and what to do.

    Nothing that existed before has changed.
    """
