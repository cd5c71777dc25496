"""All messages of a queue, or all that match a filter, handled in pieces, so that a page can show
how far it is.

One request for all of them could take minutes, without any sign of how far it is. Here each piece
is a request of its own, for the positions that were just read: what arrives meanwhile is left
alone, and whoever closes the page stops it between two pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from amqpstore_server.management.errors import HttpError, bad_request
from amqpstore_server.management.pages.api import PageApi, path_of

_PIECE = 1000
_MAX_SCANNED = 100_000
_DONE = {"move": "moved", "copy": "copied", "replay": "replayed", "delete": "deleted"}
"""The words for what was done, and the field of the API's answer that says how often."""


class QueueSelection:
    """All messages of a queue that a form stands for, and what became of them.

    Args: asked, the fields of the form.
    """

    def __init__(self, api: PageApi, vhost: str, name: str, asked: Mapping[str, str]) -> None:
        self._api = api
        self._messages = ("queues", vhost, name, "messages")
        self._action = asked.get("action", "")
        if self._action not in _DONE:
            raise bad_request(f"there is no such action: '{self._action}'")
        self._filter = {"filter": asked["filter"]} if asked.get("filter") else {}
        target = asked.get("target:optional", "")
        self._body = {"target": target} if target else {}
        self._left: Counter[str] = Counter()
        self._stopped = "it was not finished"
        self.done_count = 0
        self.seen_count = 0
        self.all_count = 0

    async def handle(self) -> AsyncIterator[None]:
        """Handle all of them, and yield after each piece. Raises: HttpError."""
        start: str | None = None
        while True:
            page = await self._page(start)
            if start is None:
                self.all_count = page["ready"] + page["unacked"]
            self.seen_count += page["scanned"]
            positions = [message["position"] for message in page["messages"]]
            if positions and not await self._handle(positions):
                return
            start = page["next"]
            yield
            if start is None or self.seen_count >= self.all_count:
                break
        self._stopped = ""

    async def _page(self, start: str | None) -> dict[str, Any]:
        left = self.all_count - self.seen_count if start is not None else _MAX_SCANNED
        query: dict[str, object] = {
            "limit": min(left, _PIECE),
            "max_scanned": min(left, _MAX_SCANNED),
            "max_payload_bytes": 0,
            **self._filter,
        }
        if start is not None:
            query["start"] = start
        found: dict[str, Any] = await self._api.get(*self._messages, **query)
        return found

    async def _handle(self, positions: list[str]) -> bool:
        """Handle a piece. Returns False if no other may follow."""
        body = {**self._body, "positions": positions}
        path = path_of(*self._messages, self._action)
        try:
            result = await self._api.ask("POST", path, body=body)
        except HttpError as error:
            if not self.done_count:
                raise
            self._stopped = error.reason
            return False
        self.done_count += result[_DONE[self._action]]
        self._left.update(result["left"])
        self._stopped = result["stopped"] or self._stopped
        return not result["stopped"]

    @property
    def is_finished(self) -> bool:
        """Whether all of them were tried."""
        return not self._stopped

    @property
    def outcome(self) -> str:
        """The outcome, for a person."""
        plural = "" if self.done_count == 1 else "s"
        text = f"{self.done_count:,} message{plural} {_DONE[self._action]}."
        for reason, count in self._left.items():
            text += f" {count:,} left: {reason}."
        return f"{text} The rest stays: {self._stopped}." if self._stopped else text
