"""Routes: the method and path of each, who may call it, and what it is described as.

The application and its description for OpenAPI are built of the same entries.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.needs import Needs

PARAMETER = re.compile(r"\{([a-z_]+)\}")

LIST_QUERY = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns")
"""The parameters of every list."""

QUERY_TYPES: dict[str, dict[str, Any]] = {
    "page": {"type": "integer", "minimum": 1},
    "page_size": {"type": "integer", "minimum": 1, "maximum": 500},
    "use_regex": {"type": "boolean"},
    "sort_reverse": {"type": "boolean"},
    "offset": {"type": "integer", "minimum": 0},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "max_scanned": {"type": "integer", "minimum": 1, "maximum": 10_000_000},
    "max_payload_bytes": {"type": "integer", "minimum": 0, "maximum": 1 << 20},
}
"""The types of parameters that are not texts."""


@dataclass(frozen=True)
class ApiRoute:
    """A route: `handler` answers requests of `method` to `path`.

    Args: summary, in a few words; needs, who may call it; body, the type of the JSON that it takes;
    query, the names of its parameters; statuses, those of its answers when all is well; refusals,
    those of errors besides the usual ones: 503 of a GET is a check that failed; media_type, of its
    answer; is_list, whether that is a list, also without `page` in its query.
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[Answer]]
    summary: str
    needs: Needs = Needs.MANAGEMENT
    body: type[Any] | None = None
    query: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)
    refusals: tuple[int, ...] = ()
    media_type: str = "application/json"
    is_list: bool = False

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in its path."""
        return PARAMETER.findall(self.path)


def in_order(routes: Iterable[ApiRoute]) -> list[ApiRoute]:
    """Return routes so that what is spelled out comes before a parameter in its place."""
    return sorted(
        routes, key=lambda route: [(part.startswith("{"), part) for part in route.path.split("/")]
    )
