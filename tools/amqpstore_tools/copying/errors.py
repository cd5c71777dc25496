"""What copying and restoring may end with, besides the engine's own errors."""

from __future__ import annotations

from amqpstore_tools.offline.exits import ToolError


class CopyError(ToolError):
    """A copy was not made, or not restored. The message says why, and what to do.

    What was there before is as it was.
    """
