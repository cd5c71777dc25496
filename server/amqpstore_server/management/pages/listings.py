"""A page of a list: its rows, how it is sorted, and the links to the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from amqpstore_server.management.pages.api import PageApi

PAGE_SIZE = 50


class ListPage:
    """A page of a list, as it was asked for in the address of the page."""

    def __init__(self, query: Mapping[str, str], found: Mapping[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = found["items"]
        self.total = int(found["filtered_count"])
        self.page = int(found["page"])
        self.pages = max(int(found["page_count"]), 1)
        self.first = (self.page - 1) * int(found["page_size"]) + bool(self.rows)
        self.last = self.first + len(self.rows) - bool(self.rows)
        self.sort = query.get("sort", "")
        self.reverse = query.get("sort_reverse") == "true"
        self.name = query.get("name", "")
        self.use_regex = query.get("use_regex") == "true"

    @classmethod
    async def read(cls, api: PageApi, parts: tuple[str, ...], query: Mapping[str, str]) -> ListPage:
        """Ask the API for the page that the query names. Raises: HttpError."""
        names = ("page", "sort", "sort_reverse", "name", "use_regex")
        asked = {name: query[name] for name in names if query.get(name)}
        asked.setdefault("page", "1")
        found = await api.get(*parts, **asked, page_size=PAGE_SIZE)
        return cls(asked, found)

    def link(self, **changes: Any) -> str:
        """Return the address of this page of the list, with some things changed; relative to the
        page that it is on.
        """
        asked: dict[str, Any] = {
            "page": self.page if self.page > 1 else "",
            "sort": self.sort,
            "sort_reverse": "true" if self.reverse else "",
            "name": self.name,
            "use_regex": "true" if self.use_regex else "",
        }
        if "reverse" in changes:
            changes["sort_reverse"] = "true" if changes.pop("reverse") else ""
        asked |= changes
        if asked["page"] == 1:
            asked["page"] = ""
        return f"?{urlencode({key: value for key, value in asked.items() if value})}"
