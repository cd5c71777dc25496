"""Importing: applies a definitions file to the broker and its store.

As in RabbitMQ an import adds and changes, and deletes nothing; except that policies of the
configuration's file replace all others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from amqpstore_server.administration.definitions import (
    BindingDefinition,
    Definitions,
    DefinitionsError,
    PolicyDefinition,
)
from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.definitions.accepted import (
    NameScope,
    check_policy,
    exchange_notes,
    notes,
    policy_notes,
    refusal,
    shortened,
)
from amqpstore_server.broker.errors import NotFoundError, PreconditionFailedError
from amqpstore_server.broker.monitoring.faults import FATAL
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.logins.users import Users, tag_notes

_log = logging.getLogger(__name__)

_MAX_LEFT_OUT = 1000
"""The most that are returned; all are logged."""

_DECLARED_AT_ONCE = 64
_MATCHES_AT_ONCE = 2000
"""Definitions that are made in one step, and committed together, besides those that are one commit;
and comparisons of their names with the patterns of policies, of which a step makes no more.
"""


def apply_definitions(
    definitions: Definitions,
    broker: Broker,
    users: Users,
    rows: Mapping[str, dict[str, Any]],
    *,
    replaces_policies: bool = True,
) -> Generator[None, None, list[str]]:
    """Apply definitions, with the users in `rows` (see `Users.hashed`), in steps: others may have
    their turn after each.

    Users, virtual hosts, permissions and policies are one commit. Whatever of the rest is refused
    is logged as an error and left out. Returns what was left out, and why.
    Raises: DefinitionsError (nothing is changed then), DurabilityError.
    """
    left_out: list[str] = []
    for wrong in definitions.left_out:
        _note(left_out, *wrong)
    for note in shortened(definitions.notes):
        _log.info("defined with something that has no effect", extra={"note": note})
    vhosts = list(dict.fromkeys([*broker.vhosts, *(vhost.name for vhost in definitions.vhosts)]))
    policies: dict[tuple[str, bool], list[Policy]] = {}
    for is_operator in (False, True):
        of_all = definitions.operator_policies if is_operator else definitions.policies
        by_vhost: dict[str, list[PolicyDefinition]] = {}
        for definition in of_all:
            by_vhost.setdefault(definition.vhost, []).append(definition)
        for name in vhosts:
            refused: set[str] = set()
            accepted = _policies(by_vhost.get(name, ()), left_out, refused, operator=is_operator)
            if name in broker.vhosts:
                names = {policy.name for policy in accepted}
                present = broker.vhosts[name].policies.all(operator=is_operator)
                kept = [policy for policy in present if policy.name not in names]
                if replaces_policies:  # one whose new form is refused stays as it is
                    kept = [policy for policy in kept if policy.name in refused]
                accepted = [*kept, *accepted]
            policies[name, is_operator] = accepted
    defined = Defined(vhosts, _permissions(definitions, broker, vhosts, left_out), policies)
    applying = broker.defining(defined, users.changes(rows))
    try:
        next(applying, None)
    except (ValueError, TypeError, OverflowError) as error:
        raise DefinitionsError(f"the definitions cannot be stored: {error}") from error
    users.have(rows)
    yield from applying
    each = chain(
        _describing(definitions, broker, left_out), _declaring(definitions, broker, left_out)
    )
    store = broker.services.store
    compared = max([vhost.policies.most_compared for vhost in broker.vhosts.values()], default=0)
    at_once = max(1, min(_DECLARED_AT_ONCE, _MATCHES_AT_ONCE // (compared + 1)))
    is_done = False
    while not is_done:
        broker.services.work["definitions"] = None
        # All that a step declares is one commit.
        store.definitions.begin_group()
        some = list(islice(each, at_once))
        store.definitions.end_group()
        is_done = len(some) < at_once
        yield
    return left_out


def notes_of(definitions: Definitions) -> list[str]:
    """Return what has no effect in definitions, each once."""
    noted: dict[str, None] = dict.fromkeys(definitions.notes)
    for is_operator in (False, True):
        for one in definitions.operator_policies if is_operator else definitions.policies:
            settings = dict(one.settings)
            noted |= dict.fromkeys(policy_notes(one.apply_to, settings, operator=is_operator))
    for user in definitions.users:
        noted |= dict.fromkeys(tag_notes(user.tags))
    for queue in definitions.queues:
        noted |= dict.fromkeys(notes(NameScope.QUEUE, queue.arguments))
    for exchange in definitions.exchanges:
        noted |= dict.fromkeys(exchange_notes(exchange.type, exchange.arguments))
    return [*noted]


def _describing(definitions: Definitions, broker: Broker, left_out: list[str]) -> Iterator[None]:
    """Define the limits of virtual hosts, what they are described with, and global parameters, one
    in each step.
    """
    for host_limits in definitions.vhost_limits:
        with _noting(left_out, "limits", host_limits.vhost, "vhost-limits"):
            if reason := refusal(NameScope.VHOST_LIMIT, host_limits.limits):
                raise PreconditionFailedError(reason)
            broker.define_vhost_limits(host_limits.vhost, host_limits.limits)
        yield
    for vhost in definitions.vhosts:
        with _noting(left_out, "metadata", vhost.name, ""):
            metadata = vhost.all_metadata
            if metadata and metadata != broker.vhost(vhost.name).metadata:
                broker.define_vhost_metadata(vhost.name, metadata)
        yield
    for parameter in definitions.unknown_parameters:
        reason = f"component '{parameter.component}' not found"
        _note(left_out, "parameter", parameter.vhost, parameter.name, reason)
        yield
    changed: dict[str, Any] = {}
    for global_parameter in definitions.global_parameters:
        if (
            global_parameter.value is not None
            and broker.global_parameters.values.get(global_parameter.name) != global_parameter.value
        ):
            with _noting(left_out, "global parameter", "", global_parameter.name):
                broker.global_parameters.check(
                    {**changed, global_parameter.name: global_parameter.value}
                )
                changed[global_parameter.name] = global_parameter.value
            yield
    if changed:
        with _noting(left_out, "global parameters", "", ""):
            broker.global_parameters.define(changed)
        yield


def _declaring(definitions: Definitions, broker: Broker, left_out: list[str]) -> Iterator[None]:
    """Declare exchanges, queues and bindings, one in each step."""
    for exchange in definitions.exchanges:
        with _noting(left_out, "exchange", exchange.vhost, exchange.name):
            broker.vhost(exchange.vhost).exchange_definitions.declare(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
        yield
    for queue in definitions.queues:
        with _noting(left_out, "queue", queue.vhost, queue.name):
            broker.vhost(queue.vhost).declare_queue(
                queue.name,
                durable=queue.durable,
                exclusive=False,
                auto_delete=queue.auto_delete,
                arguments=queue.arguments,
                connection=None,
            )
        yield
    # Bindings come last: both of their ends have to be there.
    for binding in definitions.bindings:
        with _noting(
            left_out, "binding", binding.vhost, f"{binding.source} -> {binding.destination}"
        ):
            _bind(broker.vhost(binding.vhost), binding)
        yield


def _permissions(
    definitions: Definitions, broker: Broker, vhosts: Collection[str], left_out: list[str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the permissions by user and virtual host."""
    topics: dict[tuple[str, str], dict[str, Any]] = {}
    for topic in definitions.topic_permissions:
        of_user = topics.setdefault((topic.user, topic.vhost), {})
        of_user[topic.exchange] = {"write": topic.write, "read": topic.read}
    permissions: dict[tuple[str, str], dict[str, Any]] = {}
    for permission in definitions.permissions:
        with _noting(left_out, "permission", permission.vhost, permission.user):
            if permission.vhost not in vhosts:
                raise NotFoundError(f"vhost '{permission.vhost}' not found")
            permissions[permission.user, permission.vhost] = {
                "configure": permission.configure,
                "write": permission.write,
                "read": permission.read,
                "topic": topics.pop((permission.user, permission.vhost), {}),
            }
    # The remaining ones restrict users whose permissions came from an earlier file, or will come.
    present = {(user, vhost): row for user, vhost, row in broker.granted()} if topics else {}
    for (user, vhost), limits in topics.items():
        with _noting(left_out, "topic permission", vhost, user):
            if vhost not in vhosts:
                raise NotFoundError(f"vhost '{vhost}' not found")
            permissions[user, vhost] = {**present.get((user, vhost), {}), "topic": limits}
    return permissions


def _policies(
    defined: Iterable[PolicyDefinition], left_out: list[str], refused: set[str], *, operator: bool
) -> list[Policy]:
    """Return the policies of a virtual host; those that are refused are noted, their names added to
    `refused`.
    """
    policies: dict[str, Policy] = {}
    for one in defined:
        policy = one.policy
        if reason := check_policy(policy.apply_to, policy.definition, operator=operator):
            kind = "operator policy" if operator else "policy"
            _note(left_out, kind, one.vhost, policy.name, reason)
            refused.add(policy.name)
            continue
        for note in policy_notes(policy.apply_to, policy.definition, operator=operator):
            extra = {"vhost": one.vhost, "policy": policy.name, "note": note}
            _log.info("defined with something that has no effect", extra=extra)
        policies[policy.name] = policy
    return list(policies.values())


def _bind(vhost: VirtualHost, binding: BindingDefinition) -> None:
    """Raises: BrokerError."""
    destination = (
        vhost.queue(binding.destination)
        if binding.destination_type == "queue"
        else vhost.exchange(binding.destination)
    )
    vhost.bindings.bind(destination, binding.source, binding.routing_key, binding.arguments)


@contextlib.contextmanager
def _noting(left_out: list[str], kind: str, vhost: str, name: str) -> Iterator[None]:
    """Log and note a definition that the broker refuses, and continue."""
    try:
        yield
    except FATAL:
        raise
    except Exception as error:  # noqa: BLE001 - one that cannot be must not keep the others out
        _note(left_out, kind, vhost, name, str(error))


def _note(left_out: list[str], kind: str, vhost: str, name: str, reason: str) -> None:
    extra = {"kind": kind, "vhost": vhost, "definition": name, "reason": reason}
    _log.error("definition left out", extra=extra)
    if len(left_out) < _MAX_LEFT_OUT:
        where = f" in vhost '{vhost}'" if vhost else ""
        left_out.append(f"{kind} '{name}'{where}: {reason}")
