"""Lists: pages, filters, sort orders and columns, with the parameters and answers of RabbitMQ.

A row is a table of functions, one for each column. Of 10,000 queues that are sorted by one column,
and of which 100 are on the page, one function is called for each queue, and all of them for 100.
Everything is done in steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from starlette.datastructures import QueryParams

from amqpstore_server.broker.rules.patterns import ASKED, Pattern, PatternError
from amqpstore_server.management.errors import HttpError, bad_request
from amqpstore_server.management.steps import InSteps

_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 500
_MAX_NUMBER = 1 << 31
"""Characters of a regular expression: a longer one takes long to compile."""

ABSENT: Any = object()
"""The value of a column that a row does not have."""

_LITERAL = re.compile("[A-Za-z0-9_:@/ -]*")
"""Expressions that match what they say: to look for a text takes a tenth of the time."""

_Tree = dict[str, "_Tree"]
"""The columns that are asked for, and those inside them; what is empty is wanted whole."""

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class RowKind(Protocol[T_contra]):
    """A kind of rows, and how they are made of items."""

    def reader(self, path: Sequence[str]) -> Callable[[T_contra], Any]:
        """Return what reads one column, or what is inside it, of many items; it returns ABSENT for
        a row that does not have it.
        """

    def row(self, item: T_contra, names: Sequence[str] | None) -> dict[str, Any]:
        """Return a row, with these columns or all of them."""


class Columns(Generic[T]):
    """Rows whose columns are functions of an item.

    Args: more, returns the columns that are made together and have no function of their own; only
    called if one of them is asked for; of_more, returns what reads one of those, or a part of one,
    without the others, or None if only `more` can.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[T], Any]],
        more: Callable[[T], Mapping[str, Any]] | None = None,
        of_more: Callable[[Sequence[str]], Callable[[T], Any] | None] = lambda _path: None,
    ) -> None:
        self._functions = functions
        self._more = more
        self._of_more = of_more

    def reader(self, path: Sequence[str]) -> Callable[[T], Any]:
        """Return what reads one column, or what is inside it, of many items."""
        name, *inside = path
        function = self._functions.get(name)
        if function is not None:
            return (lambda item: _inside(function(item), inside)) if inside else function
        more = self._more
        if more is None:
            return lambda _: ABSENT
        return self._of_more(path) or (lambda item: _inside(more(item), path))

    def row(self, item: T, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return a row, with these columns or all of them."""
        found = {}
        more: Mapping[str, Any] = {}
        has_more = names is None or any(name not in self._functions for name in names)
        if self._more is not None and has_more:
            more = self._more(item)
        for name in (*self._functions, *more) if names is None else names:
            function = self._functions.get(name)
            value = more.get(name, ABSENT) if function is None else function(item)
            if value is not ABSENT:
                found[name] = value
        return found


class _Made:
    """Rows that are made already."""

    def reader(self, path: Sequence[str]) -> Callable[[Mapping[str, Any]], Any]:
        return lambda item: _inside(item, path)

    def row(self, item: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
        if names is None:
            return dict(item)
        return {name: item[name] for name in names if name in item}


MADE: RowKind[Mapping[str, Any]] = _Made()


@dataclass(frozen=True)
class ListQuery:
    """The parameters that a list is asked with. `page` is 0 without pages."""

    page: int = 0
    page_size: int = _PAGE_SIZE
    name: str = ""
    use_regex: bool = False
    sort: str = ""
    sort_reverse: bool = False
    columns: _Tree | None = None

    @classmethod
    def of(cls, query: QueryParams) -> ListQuery:
        """Return what the parameters of a request ask for. Raises: HttpError."""
        page = _number(query, "page", 0)
        page_size = _number(query, "page_size", _PAGE_SIZE)
        if "page" in query and not (page > 0 and 0 < page_size <= _MAX_PAGE_SIZE):
            raise HttpError(
                400,
                "invalid_pagination_parameters",
                f"Invalid pagination parameters: page number {page}, page size {page_size}; a page "
                f"has at most {_MAX_PAGE_SIZE}",
            )
        return cls(
            page=page if "page" in query else 0,
            page_size=page_size,
            name=query.get("name", ""),
            use_regex=query.get("use_regex") == "true",
            sort=query.get("sort", ""),
            sort_reverse=query.get("sort_reverse") == "true",
            columns=_tree(query["columns"]) if query.get("columns") else None,
        )

    def matches(self) -> Callable[[Any], bool]:
        """Return the function that tells whether a name is asked for. Raises: HttpError."""
        if self.use_regex and not _LITERAL.fullmatch(self.name):
            pattern = pattern_of(self.name, "(?i)")
            return lambda name: isinstance(name, str) and pattern.matches(name)
        wanted = self.name.lower()
        return lambda name: isinstance(name, str) and wanted in name.lower()


def pattern_of(text: str, flags: str = "") -> Pattern:
    """Return the regular expression that a request has. Raises: HttpError."""
    try:
        return Pattern(f"{flags}{text}", ASKED)
    except PatternError as error:
        raise bad_request(str(error)) from None


def _number(query: QueryParams, name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    try:
        # Digits without end would take long to convert.
        number = int(text) if len(text) < 20 else _MAX_NUMBER
    except ValueError:
        raise bad_request("Pagination parameters are invalid") from None
    return max(-1, min(number, _MAX_NUMBER))


def _tree(columns: str) -> _Tree:
    tree: _Tree = {}
    for column in columns.split(","):
        if not column:
            continue
        parts = column.split(".")
        inside = tree
        for index, part in enumerate(parts):
            is_whole = part in inside and not inside[part]
            if is_whole:
                break
            inside = inside.setdefault(part, {})
            if index == len(parts) - 1:
                inside.clear()
    return tree


async def listed(
    query: ListQuery,
    items: Sequence[T],
    kind: RowKind[T],
    default_sort: Sequence[str] = ("vhost", "name"),
    other_name: Callable[[T], str] = lambda _item: "",
) -> list[dict[str, Any]] | dict[str, Any]:
    """Return the rows that are asked for: a list, or an object with a page of it.

    Args: other_name, by which a filter finds an item as well. Raises: HttpError.
    """
    steps = InSteps()
    chosen = list(items)
    total_count = len(chosen)
    if query.page and query.name:
        matches, name_of = query.matches(), kind.reader(["name"])
        chosen = await steps.chosen(
            chosen, lambda item: matches(name_of(item)) or matches(other_name(item) or None)
        )
    first = (query.page - 1) * query.page_size
    if query.page > 1 and first > len(chosen):
        raise HttpError(
            400,
            "page_out_of_range",
            f"Page out of range, page: {query.page} page size: {query.page_size}, "
            f"len: {len(chosen)}",
        )
    end = first + query.page_size if query.page else None
    filtered_count = len(chosen)
    by = [*([query.sort.split(".")] if query.sort else []), *([one] for one in default_sort)]
    columns = [await _comparable_column(steps, chosen, kind.reader(path)) for path in by]
    chosen = await steps.ordered(chosen, columns, reverse=query.sort_reverse, end=end)
    if query.page:
        chosen = chosen[first:]
    rows = await steps.each(chosen, lambda item: shown_row(query, kind, item))
    if not query.page:
        return rows
    return {
        "total_count": total_count,
        "item_count": len(rows),
        "filtered_count": filtered_count,
        "page": query.page,
        "page_size": query.page_size,
        "page_count": -(-filtered_count // query.page_size),
        "items": rows,
    }


def shown_row(query: ListQuery, kind: RowKind[T], item: T) -> dict[str, Any]:
    """Return the columns of a row that are asked for."""
    if query.columns is None:
        return kind.row(item, None)
    row = kind.row(item, list(query.columns))
    return {name: _selected(value, query.columns[name]) for name, value in row.items()}


def _selected(value: Any, tree: _Tree) -> Any:
    if not tree:
        return value
    if isinstance(value, Mapping):
        return {
            name: _selected(value[name], inside) for name, inside in tree.items() if name in value
        }
    if isinstance(value, list):
        return [_selected(item, tree) for item in value]
    return value


def _inside(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name, ABSENT) if isinstance(value, Mapping) else ABSENT
    return value


async def _comparable_column(
    steps: InSteps, items: Sequence[T], reader: Callable[[T], Any]
) -> list[Any]:
    """Return the values of a column, such that any two of them can be compared."""
    values = await steps.each(items, reader)
    types = set(await steps.each(values, type))
    if types <= {str} or types <= {bool, int, float}:
        return values
    return await steps.each(values, _comparable)


def _comparable(value: Any) -> tuple[int, Any]:
    """Return what any two values can be compared by: nothing comes first, then numbers, text."""
    if isinstance(value, str):
        return 2, value
    if isinstance(value, int | float):
        return 1, value
    return (0, 0) if value is ABSENT or value is None else (3, str(value))
