"""Names that are accepted, and act: the one table of those that a declaration, a policy or a limit
may have, whichever way they come (AMQP, the API, an import, the configuration's file), and of what
the broker reads in a message.

A name acts, or it is taken with a note, because its absence changes nothing for any message here,
or it is refused. One that is not in the table is refused if it looks like a misspelling of one that
acts; otherwise an argument is taken with a note, as applications keep things of their own there,
and a key of a policy or a limit is refused. A message is never refused for a name in it: what the
table does not have is the application's.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES
from amqpstore_server.broker.exchanges.delayed import DELAY_HEADER, TYPE_ARGUMENT
from amqpstore_server.broker.exchanges.recent_history import NO_STORE_HEADER
from amqpstore_server.broker.exchanges.replay import REPLAY_HEADERS
from amqpstore_server.broker.messages.cycles import LANDMARK
from amqpstore_server.broker.messages.envelope import KEY_HEADERS
from amqpstore_server.broker.rights.quotas import USER_LIMITS, VHOST_LIMITS
from amqpstore_server.broker.rules.settings import (
    ALTERNATE_EXCHANGE,
    AT_LEAST_ONCE,
    CHECKS,
    DROP_HEAD,
    OPERATOR_POLICY_KEYS,
    POLICY_KEYS,
    Settings,
)

STREAMS = "streams"
"""A kind of object that policies may be for, and that does not exist here."""

_ALIKE = 0.85
"""How alike two names are, from 0 to 1, if one may be a misspelling of the other."""

_MAX_COMPARED = 64
"""How many of the unknown names of one declaration are looked at for that. It takes about 0.05 ms
each, and clients may send thousands: a client that misspells a name has few.
"""

_MAX_FIELD_NAME = 100
"""How many characters of the name of a field are told: it may have as many as a body."""

_MAX_SHOWN = 10
"""How many notes are told of one request, in the log and in an answer's header, besides the number
of the others: an import may cause thousands.
"""


class NameScope(enum.Enum):
    """The kind of name: an argument of a queue, a key of a policy and so on."""

    QUEUE = "argument of a queue"
    EXCHANGE = "argument of an exchange"
    BINDING = "argument of a binding"
    CONSUMER = "argument of a consumer"
    GET = "argument of a get"
    HEADER = "header of a message"
    PROPERTY = "property of a message"
    POLICY = "policy key"
    OPERATOR_POLICY = "operator policy key"
    VHOST_LIMIT = "limit of a virtual host"
    USER_LIMIT = "limit of a user"

    @property
    def takes_any(self) -> bool:
        """Whether an unknown name is accepted, with a note."""
        return self in (NameScope.QUEUE, NameScope.EXCHANGE, NameScope.CONSUMER)


class Treatment(enum.Enum):
    """The way in which a name is treated."""

    ACTS = "acts"
    NOTED = "note"
    REFUSED = "refused"


class NameRule(NamedTuple):
    """The treatment of one name, and the reason, if it does not act."""

    treatment: Treatment
    reason: str = ""


_ONE_NODE = "a queue is on each replica of its group, and its leader leads all queues"
_MIRRORS = "there are no mirrored queues: a group of replicas has copies of all of them"
_VERSION = "queues have one version here"
_MEMORY = "messages leave memory when it is needed, whatever the queue"
_NO_STREAMS = "there are none here"
_STREAMS = f"it is of streams, and {_NO_STREAMS}"
_CANCELS = "a consumer goes on, or its connection ends, when another replica leads"
_RETRIES = "delayed retries are not supported: a queue with a TTL and a dead-letter exchange delays"
_OURS = "the broker alone writes it, and removes one that a client has written"
_NEEDS = "it needs overflow 'reject-publish' and a dead-letter exchange beside it"
_FEDERATED = "federation is not supported"

_NOTED_QUEUE = {
    "queue-leader-locator": _ONE_NODE,
    "queue-master-locator": _ONE_NODE,
    "initial-cluster-size": _ONE_NODE,
    "quorum-initial-group-size": _ONE_NODE,
    "quorum-target-group-size": _ONE_NODE,
    "target-group-size": _ONE_NODE,
    "queue-version": _VERSION,
    "max-in-memory-length": _MEMORY,
    "max-in-memory-bytes": _MEMORY,
    "max-age": _STREAMS,
    "stream-max-segment-size-bytes": _STREAMS,
    "stream-filter-size-bytes": _STREAMS,
}
"""Settings of RabbitMQ's queues that mean nothing here, as keys of policies."""

_MIRRORED = dict.fromkeys(
    (
        "ha-mode",
        "ha-params",
        "ha-sync-mode",
        "ha-sync-batch-size",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
    ),
    _MIRRORS,
)
_RETRIED = dict.fromkeys(("delayed-retry-type", "delayed-retry-min", "delayed-retry-max"), _RETRIES)


def _rows(
    acts: Iterable[str], noted: Mapping[str, str], refused: Mapping[str, str]
) -> dict[str, NameRule]:
    """Return the rows of one scope. A name in `acts` acts, even if it is in another argument as
    well.
    """
    return {
        **{name: NameRule(Treatment.REFUSED, reason) for name, reason in refused.items()},
        **{name: NameRule(Treatment.NOTED, reason) for name, reason in noted.items()},
        **{name: NameRule(Treatment.ACTS) for name in acts},
    }


def _arguments(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"x-{name}": reason for name, reason in settings.items()}


_OF_EXCHANGES = dict.fromkeys(("federation-upstream", "federation-upstream-set"), _FEDERATED)

TABLE: Mapping[NameScope, Mapping[str, NameRule]] = {
    NameScope.QUEUE: _rows(
        CHECKS, {**_arguments(_NOTED_QUEUE), "x-ha-policy": _MIRRORS}, _arguments(_RETRIED)
    ),
    NameScope.EXCHANGE: _rows(
        (
            ALTERNATE_EXCHANGE,
            *(name for its_class in EXCHANGE_TYPES.values() for name in its_class.reads_arguments),
        ),
        {},
        {},
    ),
    NameScope.BINDING: _rows(("x-match",), {}, {}),
    NameScope.CONSUMER: _rows(
        ("x-priority", "x-consumer-timeout"),
        {"x-cancel-on-ha-failover": _CANCELS, "x-stream-offset": _STREAMS},
        {"x-credit": "it is not supported: basic.qos limits what is unacked"},
    ),
    NameScope.GET: _rows(("x-wait",), {}, {}),
    NameScope.HEADER: _rows(
        (*KEY_HEADERS, DELAY_HEADER, NO_STORE_HEADER, *REPLAY_HEADERS, "x-death"),
        {"x-stream-filter-value": _STREAMS, LANDMARK: _OURS},
        {},
    ),
    NameScope.PROPERTY: _rows(
        ("delivery-mode", "expiration", "headers", "priority", "reply-to", "user-id"), {}, {}
    ),
    NameScope.POLICY: _rows(
        POLICY_KEYS, {**_NOTED_QUEUE, **_MIRRORED}, {**_RETRIED, **_OF_EXCHANGES}
    ),
    NameScope.OPERATOR_POLICY: _rows(OPERATOR_POLICY_KEYS, {**_NOTED_QUEUE, **_MIRRORED}, _RETRIED),
    NameScope.VHOST_LIMIT: _rows(VHOST_LIMITS, {}, {}),
    NameScope.USER_LIMIT: _rows(USER_LIMITS, {}, {}),
}
"""The rules for all known names."""


def entry(scope: NameScope, name: str) -> NameRule:
    """Return the rule for a name, whether it is in the table or not."""
    return next(rule for _, rule in _entries(scope, (name,)))


def _entries(scope: NameScope, names: Iterable[str]) -> Iterator[tuple[str, NameRule]]:
    """Yield the rule for each name of one declaration."""
    rows = TABLE[scope]
    acting, unknown = _unknown(scope)
    compared = 0
    for name in names:
        rule = rows.get(name)
        if rule is None:
            rule = unknown
            if compared < _MAX_COMPARED:
                compared += 1
                if meant := _meant(name, acting):
                    rule = NameRule(Treatment.REFUSED, f"is '{meant}' meant?")
        yield name, rule


def _meant(name: str, known: Iterable[str]) -> str:
    """Return the known name that another one may be a misspelling of; empty if there is none."""
    spelled = {one.replace("_", "-"): one for one in known}
    near = get_close_matches(name.lower().replace("_", "-"), spelled, 1, _ALIKE)
    return spelled[near[0]] if near else ""


def _apart(scope: NameScope, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names that have to be looked at one by one, and the others: unknown ones that are
    compared with nothing. There may be thousands.
    """
    names, rows = list(names), TABLE[scope]
    # There are at least as many unknown ones among these as are compared.
    first = _MAX_COMPARED + len(rows)
    if len(names) <= first:
        return names, []
    known = [name for name in names[first:] if name in rows]
    return names[:first] + known, [name for name in names[first:] if name not in rows]


@functools.cache
def _unknown(scope: NameScope) -> tuple[list[str], NameRule]:
    """Return the names that act, and the rule for an unknown name."""
    acting = [one for one, rule in TABLE[scope].items() if rule.treatment is Treatment.ACTS]
    if scope is NameScope.BINDING:
        return acting, NameRule(Treatment.ACTS)  # at least it tells two bindings apart
    if scope.takes_any:
        return acting, NameRule(Treatment.NOTED, "nothing here knows it")
    return acting, NameRule(Treatment.REFUSED, f"there are {', '.join(sorted(acting))}")


def notes(scope: NameScope, names: Iterable[str]) -> list[str]:
    """Return a line for each name that has no effect, in the words that an operator is told."""
    what, noted = scope.value, Treatment.NOTED  # looked up once for thousands of names
    names, others = _apart(scope, names)
    found = [
        f"{what} '{name}' has no effect: {reason}"
        for name, (treatment, reason) in _entries(scope, names)
        if treatment is noted
    ]
    _, (treatment, reason) = _unknown(scope)
    if treatment is noted:
        found += [f"{what} '{name}' has no effect: {reason}" for name in others]
    return found


CLUSTER_NAME = "cluster_name"
CLUSTER_ID = "internal_cluster_id"
GLOBAL_PARAMETERS = (CLUSTER_NAME, CLUSTER_ID)
"""The parameters of no virtual host that act."""


def check_acting_parameters(values: Mapping[str, object]) -> None:
    """Make sure that parameters of no virtual host that act can do so. Raises: ValueError."""
    for name in GLOBAL_PARAMETERS:
        if not isinstance(values.get(name, ""), str | None):
            raise ValueError(f"the global parameter '{name}' has to be a text")  # noqa: TRY004


def global_parameter_notes(name: str) -> list[str]:
    """Return what has no effect of a parameter of no virtual host: one that nothing here reads."""
    if name in GLOBAL_PARAMETERS:
        return []
    return [field_note(name, "it is kept for those who ask for it", what="global parameter")]


def field_note(name: str, reason: str, of: str = "", what: str = "field") -> str:
    """Return the line for a field of an object of JSON that has no effect. Args: of, what the
    object describes, if the line has to say that; what, it is called instead.
    """
    whole = f" of {of}" if of else ""
    return f"{what} '{name[:_MAX_FIELD_NAME]}'{whole} has no effect: {reason}"


def unread_notes(
    unread: Iterable[str], known: Collection[str], of: str = "", what: str = "field"
) -> list[str]:
    """Return a line for each field that nothing reads. Programs and files of RabbitMQ have such
    fields, and it ignores them: they are taken with a note. Args: known, the fields that are read.
    """
    found = []
    for number, name in enumerate(unread):
        meant = _meant(name, known) if number < _MAX_COMPARED else ""
        reason = f"is '{meant}' meant?" if meant else "nothing reads it"
        found.append(field_note(name, reason, of, what))
    return found


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    if len(lines) <= _MAX_SHOWN:
        return [*lines]
    return [*lines[:_MAX_SHOWN], f"and {len(lines) - _MAX_SHOWN} more"]


def queue_notes(arguments: Iterable[str], settings: Settings) -> list[str]:
    """Return `notes` of a queue, and what its settings together leave without effect."""
    found = notes(NameScope.QUEUE, arguments)
    if settings.dead_letter_strategy == AT_LEAST_ONCE and not settings.keeps_letters:
        found.append(f"dead-letter-strategy '{AT_LEAST_ONCE}' has no effect here: {_NEEDS}")
    return found


def exchange_notes(type_name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return `notes` of an exchange, and what only other types read; what the types of packages
    read is known to them alone.
    """
    if type_name not in EXCHANGE_TYPES:
        return []
    found = notes(NameScope.EXCHANGE, arguments)
    types = {type_name}
    if TYPE_ARGUMENT in EXCHANGE_TYPES[type_name].reads_arguments:
        types |= EXCHANGE_TYPES.keys() & {str(arguments.get(TYPE_ARGUMENT))}
    read = {
        ALTERNATE_EXCHANGE,
        *(name for one in types for name in EXCHANGE_TYPES[one].reads_arguments),
    }
    found += [
        f"{NameScope.EXCHANGE.value} '{name}' has no effect: it is not of type '{type_name}'"
        for name in TABLE[NameScope.EXCHANGE]
        if name in arguments and name not in read and _acts(NameScope.EXCHANGE, name)
    ]
    return found


def consumer_notes(arguments: Iterable[str], *, no_local: bool) -> list[str]:
    """Return `notes` of a consumer. Args: no_local, it does not want what its connection
    publishes: RabbitMQ does not look at that either.
    """
    found = notes(NameScope.CONSUMER, arguments)
    if no_local:
        found.append(
            "'no-local' of a consumer has no effect: it gets what its connection publishes"
        )
    return found


def _acts(scope: NameScope, name: str) -> bool:
    rule = TABLE[scope].get(name)
    return rule is not None and rule.treatment is Treatment.ACTS


def refusal(scope: NameScope, names: Iterable[str]) -> str:
    """Return why the first of the names that is refused is; empty if none is."""
    for name, (treatment, reason) in _entries(scope, _apart(scope, names)[0]):
        if treatment is Treatment.REFUSED:
            return f"no {scope.value} '{name}': {reason}"
    return ""


def check_arguments(scope: NameScope, names: Iterable[str], what: str) -> None:
    """Make sure that no argument is refused. Args: what, they belong to, for the error.

    Raises: PreconditionFailedError.
    """
    refused = Treatment.REFUSED
    for name, (treatment, reason) in _entries(scope, _apart(scope, names)[0]):
        if treatment is refused:
            raise PreconditionFailedError(f"invalid arg '{name}' for {what}: {reason}")


def policy_notes(apply_to: str, settings: Mapping[str, Any], *, operator: bool) -> list[str]:
    """Return a line for each part of a policy that has no effect."""
    if apply_to == STREAMS:
        kind = "an operator policy" if operator else "a policy"
        return [f"{kind} for streams has no effect: {_NO_STREAMS}"]
    scope = NameScope.OPERATOR_POLICY if operator else NameScope.POLICY
    lines = notes(scope, settings)
    if settings.get("dead-letter-strategy") == AT_LEAST_ONCE and (
        settings.get("overflow", DROP_HEAD) == DROP_HEAD or "dead-letter-exchange" not in settings
    ):
        lines.append(
            f"{scope.value} 'dead-letter-strategy' has no effect on a queue that does not "
            f"have the rest by itself: {_NEEDS}"
        )
    if "dead-letter-routing-key" in settings and "dead-letter-exchange" not in settings:
        lines.append(
            f"{scope.value} 'dead-letter-routing-key' has no effect on a queue that does "
            "not have a dead-letter exchange by itself"
        )
    for name in settings:
        is_of_exchanges = name == ALTERNATE_EXCHANGE
        applies = apply_to == "all" or is_of_exchanges == (apply_to == "exchanges")
        if not applies and _acts(scope, name):
            whose = "exchanges" if is_of_exchanges else "queues"
            lines.append(
                f"{scope.value} '{name}' has no effect: it is of {whose}, and the policy "
                f"applies to '{apply_to}'"
            )
    return lines


def check_policy(apply_to: str, settings: Mapping[str, Any], *, operator: bool) -> str:
    """Return why a policy is refused; empty if it is not. One for streams acts on nothing."""
    if apply_to == STREAMS:
        return ""
    scope = NameScope.OPERATOR_POLICY if operator else NameScope.POLICY
    if refused := refusal(scope, settings):
        return refused
    checks: Mapping[str, Callable[[Any], str]] = OPERATOR_POLICY_KEYS if operator else POLICY_KEYS
    for key, value in settings.items():
        if (check := checks.get(key)) and (reason := check(value)):
            return f"{scope.value} '{key}': {reason}"
    return ""
