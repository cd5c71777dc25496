"""Clients at the doors, without sockets."""


class NamedGuest:
    """A client by its name, which is in a list once it was turned away."""

    def __init__(self, name: str = "", turned_away: list[str] | None = None) -> None:
        self.is_unread = False
        self._name = name
        self._turned_away = [] if turned_away is None else turned_away

    def evict(self) -> None:
        self._turned_away.append(self._name)

    def has_unread(self) -> bool:
        return self.is_unread
