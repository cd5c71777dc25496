"""Errors of archives."""

from __future__ import annotations

from amqpstore.errors import StoreError


class ArchiveError(StoreError):
    """An archive cannot be written or read; the message says where, why, and what to do."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"the archive {directory}: {reason}")
        self.directory = directory
