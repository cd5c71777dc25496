"""A page of a list: its rows, how it is sorted, and the links to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.pages.api import PageApi

PAGE_SIZE = 50
PAGE_SIZES = (50, 100, 200, 500)

_OF_VHOSTS = ("connections", "channels")
"""The lists whose address begins with the virtual host."""


class ListPage:
    """A page of a list, as it was asked for in the address of the page.

    Args: vhosts, of which one may be chosen; problem, why there are no rows, if the filter is
    invalid.
    """

    def __init__(
        self,
        query: Mapping[str, str],
        listing: Mapping[str, Any],
        vhosts: Sequence[str],
        problem: str = "",
    ) -> None:
        self.rows: list[dict[str, Any]] = listing["items"]
        self.total = int(listing["filtered_count"])
        self.page = int(listing["page"])
        self.pages = max(int(listing["page_count"]), 1)
        self.first = (self.page - 1) * int(listing["page_size"]) + bool(self.rows)
        self.last = self.first + len(self.rows) - bool(self.rows)
        self.sort = query.get("sort", "")
        self.reverse = query.get("sort_reverse") == "true"
        self.name = query.get("name", "")
        self.use_regex = query.get("use_regex") == "true"
        self.vhost = query.get("vhost", "")
        self.page_size = int(listing["page_size"])
        self.page_sizes = PAGE_SIZES
        self.vhosts = vhosts
        self.problem = problem

    @classmethod
    async def read(cls, api: PageApi, parts: tuple[str, ...], query: Mapping[str, str]) -> ListPage:
        """Ask the API for the page that the query names. Raises: HttpError.

        A list may have become shorter since: then it is its last page. A filter that is invalid
        finds nothing, and says why.
        """
        names = ("page", "page_size", "sort", "sort_reverse", "name", "use_regex")
        asked = {name: query[name] for name in names if query.get(name)}
        asked.setdefault("page", "1")
        asked.setdefault("page_size", str(PAGE_SIZE))
        vhosts = [row["name"] for row in await api.get("vhosts", columns="name")]
        vhost = query.get("vhost", "")
        if vhost in vhosts:
            parts = ("vhosts", vhost, *parts) if parts[0] in _OF_VHOSTS else (*parts, vhost)
        shown = {**asked, "vhost": vhost}
        problem = ""
        try:
            listing = await api.get(*parts, **asked)
        except HttpError as error:
            if error.error == "page_out_of_range":
                asked["page"] = "1"
                first = await api.get(*parts, **asked)
                asked["page"] = str(max(first["page_count"], 1))
            elif asked.pop("use_regex", "") and asked.pop("name", ""):
                asked["page"], problem = "1", error.reason
            else:
                raise
            listing = await api.get(*parts, **asked)
            if problem:
                listing |= {"items": [], "filtered_count": 0, "page_count": 1}
        return cls(shown, listing, vhosts, problem)

    def link(self, **changes: Any) -> str:
        """Return the address of this page of the list, with some things changed; relative to the
        page that it is on.
        """
        return f"?{urlencode(self.asked(**changes))}"

    def asked(self, **changes: Any) -> dict[str, Any]:
        """Return the parameters of this page of the list, with some things changed."""
        asked: dict[str, Any] = {
            "page": self.page if self.page > 1 else "",
            "sort": self.sort,
            "sort_reverse": "true" if self.reverse else "",
            "name": self.name,
            "use_regex": "true" if self.use_regex else "",
            "vhost": self.vhost,
            "page_size": self.page_size if self.page_size != PAGE_SIZE else "",
        }
        if "reverse" in changes:
            changes["sort_reverse"] = "true" if changes.pop("reverse") else ""
        asked |= changes
        if asked["page"] == 1:
            asked["page"] = ""
        return {key: value for key, value in asked.items() if value}
