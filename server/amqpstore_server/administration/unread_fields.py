"""Fields of JSON that nothing reads: in the body of a request, and in a file of definitions.

RabbitMQ ignores them, and programs for it send more than it reads: so they are taken, with a note
(see `broker.accepted`). What only repeats what is said elsewhere, or says where a file comes from,
needs none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from amqpstore_server.broker.definitions.accepted import field_note, unread_notes
from amqpstore_server.broker.rules.settings import CLASSIC, QUEUE_TYPE

_MAX_FIELDS = 1000
"""How many different fields of one file are noted."""

_ABOUT_THE_FILE = frozenset(
    {
        "default_queue_type",
        "description",
        "explanation",
        "limits",
        "metadata",
        "name",
        "original_cluster_name",
        "original_vhost_name",
        "product_name",
        "product_version",
        "rabbit_version",
        "rabbitmq_definition_format",
        "rabbitmq_version",
        "tags",
        "vhost",
    }
)
"""Fields that RabbitMQ writes beside the lists of a file: where they come from. It does not read
them either.
"""

_REASONS = {
    ("queue", "type"): f"the argument '{QUEUE_TYPE}' says it",
    ("vhost", "limits"): "the parameter 'limits' of the component 'vhost-limits' says them",
    ("vhost", "tracing"): "a start turns tracing off, and PUT /api/vhosts/NAME turns it on",
}
"""Fields of entries in RabbitMQ's files, and why nothing reads them."""

_DESTINATIONS = {"q": "queue", "e": "exchange"}
_DEFAULT_EXCHANGE = ("", "amq.default")


@functools.cache
def fields_of(kind: type[Any]) -> frozenset[str]:
    """Return the names that the fields of a struct have in JSON."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def unread_of_body(found: Mapping[str, Any], kind: Any, path: Mapping[str, str]) -> list[str]:
    """Return a line for each field of a body that its type does not have, unless it says the same
    as the path of the request, or is null. Args: path, its parameters.
    """
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return []
    known = fields_of(kind)
    unread = [name for name, value in found.items() if name not in known and value is not None]
    if not unread:
        return []
    said = _said_by(path)
    other = [
        field_note(name, "the path of the request says it")
        for name in unread
        if name in said and found[name] not in said[name]
    ]
    return other + unread_notes([name for name in unread if name not in said], known)


def _said_by(path: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the values that fields have if they repeat the path; programs in Go send an empty text
    for what they do not set.
    """
    said = dict(path)
    if path:
        said["name"] = list(path.values())[-1]
    if "kind" in path:
        said["destination_type"] = _DESTINATIONS.get(path["kind"], "")
    return {
        name: _DEFAULT_EXCHANGE if text in _DEFAULT_EXCHANGE else (text, "")
        for name, text in said.items()
    }


class UnreadFields:
    """Counts the fields of a file's entries that nothing reads: thousands may have the same."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._notes: dict[tuple[str, str], str] = {}

    def look(self, kind: str, its_type: Any, entry: Any, name: str = "") -> None:
        """Count the fields of an entry, or with an empty `kind` those of the whole file. Args:
        name, of an entry that does not have its own.
        """
        known = fields_of(its_type)
        if not isinstance(entry, dict) or entry.keys() <= known:
            return
        for one in entry:
            if one in known or _needs_no_note(kind, one, entry):
                continue
            field = kind, one
            if field in self._counts:
                self._counts[field] += 1
            elif len(self._counts) < _MAX_FIELDS:
                self._counts[field] = 1
                of = f"{kind} '{name or _name_of(entry)}'" if kind else "the definitions"
                reason = _REASONS.get(field)
                self._notes[field] = (
                    field_note(one, reason, of) if reason else unread_notes([one], known, of)[0]
                )

    def notes(self) -> list[str]:
        """Return a line for each field, with the first entry that has it."""
        return [
            f"{note}; so have {self._counts[field] - 1} more" if self._counts[field] > 1 else note
            for field, note in self._notes.items()
        ]


def _needs_no_note(kind: str, name: str, entry: Mapping[str, Any]) -> bool:
    value = entry[name]
    if (kind, name) == ("queue", "type"):
        arguments = entry.get("arguments")
        declared = arguments.get(QUEUE_TYPE) if isinstance(arguments, dict) else None
        return bool(value in (None, declared or CLASSIC))
    if (kind, name) in _REASONS:
        return not value
    return value is None or (not kind and name in _ABOUT_THE_FILE)


def _name_of(entry: Mapping[str, Any]) -> str:
    """Return what names an entry."""
    if "source" in entry:
        return f"{entry['source']} -> {entry.get('destination', '')}"
    return str(entry.get("name", entry.get("user", "")))
