"""The settings of a queue: the result of its arguments and the policies that match it.

If an argument and a policy give different numbers, the smaller applies; for other settings the
argument does. An operator policy limits both: its numbers apply if they are smaller, and for other
settings it overrides the policy, but not the argument (as in RabbitMQ).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from amqpstore_server.broker.errors import PreconditionFailedError

DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"

AT_MOST_ONCE = "at-most-once"
"""The strategy by which dead letters without a route are gone, and full queues take the others."""

AT_LEAST_ONCE = "at-least-once"
"""The strategy by which they wait in their queue until all queues that they go to take them."""


class LetterStrategy(enum.StrEnum):
    """The treatment of messages that die in a queue, as RabbitMQ's metrics name it."""

    DISABLED = "disabled"
    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"


QUEUE_TYPE = "x-queue-type"
CLASSIC = "classic"
QUORUM = "quorum"
DEFAULT_QUEUE_TYPE = "default_queue_type"
"""The name in the metadata of a virtual host for the type of queues that are declared without one.
"""

PROTECTED = "protected_from_deletion"
"""The field in the metadata of a virtual host that says that it cannot be deleted."""

_NOT_OF_QUORUM = ("x-max-priority", "x-queue-mode")
"""Arguments that RabbitMQ refuses for quorum queues."""

_MAX_MS = 1 << 52
_MAX_COUNT = (1 << 63) - 1
"""The number that clients write for no limit."""

_MAX_NAME_BYTES = 255
MAX_PURGE_UNDO_S = 366 * 24 * 3600
_QUORUM_DELIVERY_LIMIT = 20
"""RabbitMQ's default delivery limit of quorum queues."""
_UNLIMITED = {"delivery-limit": -1, "consumer-timeout": 0}
"""The values that declare a queue without a limit that it would have otherwise."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one queue; None means no limit. Times in ms, sizes in bytes of bodies.

    A `consumer_timeout` or `purge_undo_seconds` of 0 means none, and None that of the broker.
    """

    message_ttl: int | None = None
    expires: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: str = AT_MOST_ONCE
    max_priority: int = 0
    delivery_limit: int | None = None
    queue_mode: str = "default"
    single_active_consumer: bool = False
    history_length: int | None = None
    history_ttl: int | None = None
    consumer_timeout: int | None = None
    purge_undo_seconds: int | None = None

    @property
    def keeps_history(self) -> bool:
        """Whether consumed messages are kept; a limit of 0 disables the history."""
        limits = {self.history_length, self.history_ttl} - {None}
        return bool(limits) and 0 not in limits

    @property
    def is_limited(self) -> bool:
        """Whether the number or size of ready messages is limited."""
        return self.max_length is not None or self.max_length_bytes is not None

    @property
    def rejects(self) -> bool:
        """Whether new messages are refused when it is full, instead of dropping the oldest."""
        return self.overflow != DROP_HEAD

    @property
    def keeps_letters(self) -> bool:
        """Whether dead letters wait in the queue until others have taken them. One that drops its
        oldest messages cannot let them wait: it would grow without a limit (as in RabbitMQ).
        """
        is_wanted = self.dead_letter_strategy == AT_LEAST_ONCE
        return is_wanted and self.rejects and self.dead_letter_exchange is not None

    @property
    def letter_strategy(self) -> LetterStrategy:
        """The treatment of messages that die in the queue."""
        if self.dead_letter_exchange is None:
            return LetterStrategy.DISABLED
        keeps = self.keeps_letters
        return LetterStrategy.AT_LEAST_ONCE if keeps else LetterStrategy.AT_MOST_ONCE

    @property
    def appends(self) -> bool:
        """Whether published messages are only appended, however full it is, though others may be
        dropped then.
        """
        is_free = not self.is_limited or not self.rejects
        return is_free and not self.max_priority and self.message_ttl is None

    @property
    def is_plain(self) -> bool:
        """Whether published messages only have to be appended."""
        return not (self.is_limited or self.max_priority or self.message_ttl is not None)


def settings_of(
    arguments: Mapping[str, Any],
    policy: Mapping[str, Any] | None = None,
    operator_policy: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings that result from arguments and policies. A value of the wrong type is
    ignored.
    """
    values: dict[str, Any] = {}
    if is_quorum(arguments):
        values["delivery_limit"] = _QUORUM_DELIVERY_LIMIT
    for field in fields(Settings):
        key = field.name.replace("_", "-")
        argument = _valid(key, arguments.get(f"x-{key}"))
        given = _valid(key, (policy or {}).get(key))
        limit = _valid(key, (operator_policy or {}).get(key))
        if key in _NUMBERS:
            numbers = [value for value in (argument, given, limit) if value is not None]
            limits = [number for number in numbers if number != _UNLIMITED.get(key)]
            value = min(limits, default=None)
            if numbers and value is None:
                # Declared without a limit.
                values.pop(field.name, None)
                value = 0 if key == "consumer-timeout" else None
        else:
            value = next((one for one in (argument, limit, given) if one is not None), None)
        if value is not None:
            values[field.name] = value
    return Settings(**values)


def is_quorum(arguments: Mapping[str, Any]) -> bool:
    """Tell whether a queue is declared as a quorum queue, in which every message is persistent."""
    return arguments.get(QUEUE_TYPE) == QUORUM


def check_quorum(
    what: str, arguments: Mapping[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Make sure that the declaration of a quorum queue is valid.

    Args: what, the queue, for the error.
    Raises: PreconditionFailedError.
    """
    if not is_quorum(arguments):
        return
    for wrong, name in (
        (not durable, "property 'non-durable'"),
        (exclusive, "property 'exclusive'"),
        (auto_delete, "property 'auto-delete'"),
        *((name in arguments, f"arg '{name}'") for name in _NOT_OF_QUORUM),
    ):
        if wrong:
            raise PreconditionFailedError(f"invalid {name} for {what}: it is a quorum queue")


def check_arguments(what: str, arguments: Mapping[str, Any]) -> None:
    """Make sure that the arguments of a queue have the right types and are consistent.

    Args: what, the queue, for the error.
    Raises: PreconditionFailedError.
    """
    for name, value in arguments.items():
        check = CHECKS.get(name)
        if check and (reason := check(value)):
            raise PreconditionFailedError(f"invalid arg '{name}' for {what}: {reason}")
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise PreconditionFailedError(
            f"invalid arg 'x-dead-letter-routing-key' for {what}: "
            "it needs x-dead-letter-exchange beside it"
        )


def _number(lowest: int, highest: int = _MAX_MS) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is not an integer"
        if not lowest <= value <= highest:
            return f"{value} is not from {lowest} to {highest}"
        return ""

    return check


def _name(value: Any) -> str:
    if not isinstance(value, str):
        return f"{value!r} is not a string"
    return "" if len(value.encode()) <= _MAX_NAME_BYTES else "it has over 255 bytes"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else f"{value!r} is not a boolean"


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        is_word = isinstance(value, str) and value in words
        return "" if is_word else f"{value!r} is not one of {', '.join(words)}"

    return check


_NUMBERS = {
    "message-ttl": _number(0),
    "expires": _number(1),
    "max-length": _number(0, _MAX_COUNT),
    "max-length-bytes": _number(0, _MAX_COUNT),
    "delivery-limit": _number(_UNLIMITED["delivery-limit"], _MAX_COUNT),
    "max-priority": _number(0, 255),
    "history-length": _number(0, _MAX_COUNT),
    "history-ttl": _number(0),
    "consumer-timeout": _number(0),
    "purge-undo-seconds": _number(0, MAX_PURGE_UNDO_S),
}

_CHECKS = {
    **_NUMBERS,
    "overflow": _one_of(DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX),
    "dead-letter-exchange": _name,
    "dead-letter-routing-key": _name,
    "dead-letter-strategy": _one_of(AT_MOST_ONCE, AT_LEAST_ONCE),
    "queue-mode": _one_of("default", "lazy"),
    "single-active-consumer": _flag,
}

CHECKS: dict[str, Callable[[Any], str]] = {
    **{f"x-{key}": check for key, check in _CHECKS.items()},
    QUEUE_TYPE: _one_of(CLASSIC, QUORUM),
}
"""The check of each queue argument that has an effect: returns the reason why a value is invalid,
or an empty text.
"""

ALTERNATE_EXCHANGE = "alternate-exchange"

POLICY_KEYS: dict[str, Callable[[Any], str]] = {**_CHECKS, ALTERNATE_EXCHANGE: _name}
"""The checks of each key of a policy's definition."""

OPERATOR_POLICY_KEYS = {key: POLICY_KEYS[key] for key in (*_NUMBERS, "overflow")}
"""The checks of the keys of operator policies: they limit what queues take, not where messages go.
"""


def _valid(key: str, value: Any) -> Any:
    """Return a value, or None if it is of the wrong type."""
    return None if value is None or _CHECKS[key](value) else value
