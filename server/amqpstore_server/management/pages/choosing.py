"""The columns of a list that a browser shows: its user's choice, in a cookie for each list.

Until then a list has its usual columns, and on a phone fewer. What was chosen is shown on any
screen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from amqpstore_server.management.pages.columns import LISTS, NAME, ListColumn

KEPT_S = 365 * 24 * 3600
"""How long a browser keeps a choice; each new one begins anew."""

_BETWEEN = "."


class ColumnChoice:
    """The columns of a list, and those that a browser shows.

    Args: chosen, the keys that were chosen; None if none were. Unknown keys are ignored.
    """

    def __init__(self, name: str, chosen: Collection[str] | None) -> None:
        self.name = name
        self.is_usual = chosen is None
        self.shown = [
            column
            for column in LISTS[name]
            if column.key == NAME or (column.is_usual if chosen is None else column.key in chosen)
        ]

    @classmethod
    def of(cls, name: str, cookies: Mapping[str, str]) -> ColumnChoice:
        """Return the choice that the cookies of a browser say."""
        kept = cookies.get(cookie_of(name))
        return cls(name, None if kept is None else kept.split(_BETWEEN))

    @property
    def cookie(self) -> str:
        """The value of the cookie that says this choice."""
        return _BETWEEN.join(column.key for column in self.shown)

    @property
    def groups(self) -> dict[str, list[ListColumn]]:
        """The columns that can be chosen, by the heading that they are under."""
        groups: dict[str, list[ListColumn]] = {}
        for column in LISTS[self.name]:
            if column.key != NAME:
                groups.setdefault(column.group, []).append(column)
        return groups

    def classes(self, column: ListColumn) -> str:
        """Return the classes of the cells of a column."""
        if not self._is_left_out(column):
            return column.kind
        return f"{column.kind} optional".strip()

    def has_on_a_phone(self, key: str) -> bool:
        """Whether a column is shown on a screen of any width."""
        return any(one.key == key and not self._is_left_out(one) for one in self.shown)

    def _is_left_out(self, column: ListColumn) -> bool:
        return self.is_usual and column.is_wide


def cookie_of(name: str) -> str:
    """Return the name of the cookie that says which columns of a list are shown."""
    return f"amqpstore_columns_{name}"
