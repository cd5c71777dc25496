"""Queues: list, declare, delete, purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from amqpstore_server.administration.tables import shown_table
from amqpstore_server.broker.definitions.accepted import field_note, queue_notes
from amqpstore_server.broker.monitoring.departures import dead_lettered, labelled, reasons_of_queue
from amqpstore_server.broker.queues.message_sums import memory_bytes
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.settings import CLASSIC, QUEUE_TYPE, is_quorum
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.management.answers import Answer, created, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.clients import consumers_of, owner_row
from amqpstore_server.management.errors import bad_request, not_found
from amqpstore_server.management.listing import ABSENT, MADE, Columns
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.queue_bytes import amount_reader, amounts
from amqpstore_server.management.queue_head import head_timestamp
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute
from amqpstore_server.management.topology import (
    carry_out,
    check_queue_exists,
    checked_arguments,
    name_in,
)
from amqpstore_server.protocol import methods
from amqpstore_server.statistics.statistics import Statistics

Found = tuple[VirtualHost, Queue]

_STATISTICS_QUERY = ("msg_rates_age", "msg_rates_incr", "lengths_age", "lengths_incr")
_QUERY = (*LIST_QUERY, *_STATISTICS_QUERY, "disable_stats", "enable_queue_totals")


class DeclareQueue(msgspec.Struct):
    """The body of a request that declares a queue; the last three say nothing."""

    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] | list[Any] = {}
    exclusive: bool = False
    type: str | None = None
    node: str | None = None

    def notes(self, declared_type: str, node: str) -> list[str]:
        """Return what has no effect. Args: declared_type, of the queue; node, of this broker."""
        found = []
        if self.exclusive:
            reason = "an exclusive queue belongs to the AMQP connection that declares it"
            found.append(field_note("exclusive", reason))
        if self.type not in (None, "", declared_type):
            found.append(field_note("type", f"the argument '{QUEUE_TYPE}' says it"))
        if self.node not in (None, "", node):
            found.append(field_note("node", f"there is no other node than '{node}'"))
        return found


class QueueAction(msgspec.Struct):
    """Something to do with a queue: `sync` and `cancel_sync`, for which there is nothing to do."""

    action: str


def queue_columns(call: Call, *, has_statistics: bool = True) -> Columns[Found]:
    """Return the columns of queues."""
    context = call.context
    columns: dict[str, Any] = {
        "name": lambda found: found[1].name,
        "vhost": lambda found: found[0].name,
        "type": lambda found: found[1].arguments.get(QUEUE_TYPE, CLASSIC),
        "durable": lambda found: found[1].durable,
        "auto_delete": lambda found: found[1].auto_delete,
        "exclusive": lambda found: found[1].owner is not None,
        "arguments": lambda found: shown_table(found[1].arguments),
        "node": lambda _: context.node,
    }
    if has_statistics or call.is_true("enable_queue_totals"):
        columns |= {
            "state": lambda found: "crashed" if found[1].is_set_aside else "running",
            "messages": lambda found: (
                found[1].ready_count + found[1].unacked_count + found[1].letter_count
            ),
            "messages_ready": lambda found: found[1].ready_count,
            "messages_unacknowledged": lambda found: found[1].unacked_count,
            "messages_dlx": lambda found: found[1].letter_count,
        }
    if not has_statistics:
        return Columns(columns)
    ranges = call.ranges
    columns |= {
        "consumers": lambda found: len(found[1].consumers),
        "consumer_capacity": _consumer_capacity,
        "consumer_utilisation": _consumer_capacity,
        "exclusive_consumer_tag": _exclusive_tag,
        "single_active_consumer_tag": _active_tag,
        "policy": lambda found: _policy_name(found, operator=False),
        "operator_policy": lambda found: _policy_name(found, operator=True),
        "effective_policy_definition": effective_definition,
        "memory": lambda found: memory_bytes(found[1]),
        "messages_left": lambda found: labelled(
            reasons_of_queue(found[1].departures, found[1].counters)
        ),
        "messages_dead_lettered": lambda found: labelled(dead_lettered(found[1].departures)),
        "messages_dlx_reasons": lambda found: (
            {} if found[1].letters is None else dict(found[1].letters.reasons)
        ),
        "messages_came_back": lambda found: found[1].departures.came_back,
        "idle_since": lambda found: _idle_since(context.statistics, found[1]),
        "head_message_timestamp": lambda found: head_timestamp(
            context.broker.services.store, found[1]
        ),
        "leader": lambda found: _of_quorum(found, context.node),
        "members": lambda found: _of_quorum(found, [context.node]),
        "online": lambda found: _of_quorum(found, [context.node]),
        "delivery_limit": lambda found: _of_quorum(found, found[1].settings.delivery_limit),
        "owner_pid_details": lambda found: (
            ABSENT if found[1].owner is None else owner_row(context, found[1].owner)
        ),
    }
    return Columns(
        columns,
        lambda found: {**amounts(found[1]), **context.statistics.queue(found[1], ranges)},
        lambda path: _number_reader(context.statistics, path),
    )


def _number_reader(statistics: Statistics, path: Sequence[str]) -> Callable[[Found], float] | None:
    """Return what reads a number or a rate of queues: lists of many are sorted by them."""
    read = amount_reader(path[0]) or statistics.queue_number(path)
    return None if read is None else lambda found: read(found[1])


def _of_quorum(found: Found, value: Any) -> Any:
    """Return what only queues have that were declared as quorum queues."""
    return ABSENT if value is None or not is_quorum(found[1].arguments) else value


def _idle_since(statistics: Statistics, queue: Queue) -> Any:
    since_ms = statistics.idle_since_ms(queue)
    if since_ms is None:
        return ABSENT
    return datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _consumer_capacity(found: Found) -> float:
    return round(found[1].consumers.room_share, 3)


def _exclusive_tag(found: Found) -> str | None:
    return next((one.tag for one in found[1].consumers.consumers if one.exclusive), None)


def _active_tag(found: Found) -> str | None:
    queue = found[1]
    if not queue.settings.single_active_consumer:
        return None
    return next((one.tag for one in queue.consumers.active), None)


def _policy_name(found: Found, *, operator: bool) -> str | None:
    vhost, queue = found
    policy = vhost.policies.of_queue(queue.name, queue.arguments, operator=operator)
    return policy.name if policy else None


def effective_definition(found: Found) -> dict[str, Any]:
    """Return what the policies of a queue say, those of operators first."""
    vhost, queue = found
    merged: dict[str, Any] = {}
    for operator in (False, True):
        policy = vhost.policies.of_queue(queue.name, queue.arguments, operator=operator)
        for key, value in (policy.definition if policy else {}).items():
            both = (merged.get(key), value)
            if all(type(one) is int for one in both):
                value = min(both)  # as `settings` does
            merged[key] = value
    return merged


def queues_of(*vhosts: VirtualHost) -> list[Found]:
    """Return the queues of virtual hosts, without the broker's own."""
    return [
        (vhost, queue) for vhost in vhosts for queue in vhost.queues.values() if queue.is_listed
    ]


def queue_in(call: Call) -> Found:
    """Return the queue in the path. Raises: HttpError."""
    vhost = call.vhost
    queue = vhost.queues.get(call.path["queue"])
    if queue is None or not queue.is_listed:
        raise not_found(f"no queue '{call.path['queue']}' in vhost '{vhost.name}'")
    return vhost, queue


async def list_queues(call: Call) -> Answer:
    """Return the queues that the user may see, or those of a virtual host."""
    if "vhost" in call.path:
        vhosts = [call.vhost]
    else:
        vhosts = [call.context.broker.vhosts[name] for name in call.identity.visible_vhosts()]
    columns = queue_columns(call, has_statistics=not call.is_true("disable_stats"))
    return await call.listed(queues_of(*vhosts), columns)


async def quorum_status(call: Call) -> Answer:
    """Return who leads a quorum queue: its log is that of all queues, so there are no numbers of
    its own.
    """
    _, queue = queue_in(call)
    if not is_quorum(queue.arguments):
        reason = f"{CLASSIC}_queue_not_supported"
        return await call.json({"status": "failed", "reason": reason}, 503)
    state = "noproc" if queue.is_set_aside else "leader"
    row = {"Node Name": call.context.node, "Raft State": state, "Membership": "voter"}
    return await call.json([row])


async def get_queue(call: Call) -> Answer:
    """Return a queue, with its consumers."""
    found = queue_in(call)
    found[1].catch_up()
    row = queue_columns(call).row(found)
    row["notes"] = queue_notes(found[1].arguments, found[1].settings)
    row["consumer_details"] = await consumers_of(call.context, [found[1]])
    row["incoming"] = []
    row["deliveries"] = []
    return await call.row(row, MADE)


async def put_queue(call: Call) -> Answer:
    """Declare a queue."""
    body = await call.body(DeclareQueue)
    name = name_in(call, "queue")
    if not name:
        raise bad_request("a queue needs a name")
    is_new = name not in call.vhost.queues
    await carry_out(
        call,
        methods.QueueDeclare(
            queue=name,
            durable=body.durable,
            auto_delete=body.auto_delete,
            arguments=checked_arguments(body.arguments),
        ),
    )
    declared = call.vhost.queue(name)
    call.note(body.notes(declared.arguments.get(QUEUE_TYPE, CLASSIC), call.context.node))
    call.note(queue_notes(body.arguments, declared.settings))
    return created() if is_new else no_content()


async def delete_queue(call: Call) -> Answer:
    """Delete a queue."""
    name = name_in(call, "queue")
    check_queue_exists(call, name)
    method = methods.QueueDelete(
        queue=name, if_unused=call.is_condition("if-unused"), if_empty=call.is_condition("if-empty")
    )
    await carry_out(call, method)
    return no_content()


async def purge_queue(call: Call) -> Answer:
    """Remove the ready messages of a queue."""
    name = name_in(call, "queue")
    check_queue_exists(call, name)
    await carry_out(call, methods.QueuePurge(queue=name))
    return no_content()


async def act_on_queue(call: Call) -> Answer:
    """Accept what is asked of mirrored queues, which are always in sync here."""
    body = await call.body(QueueAction)
    queue_in(call)
    if body.action not in ("sync", "cancel_sync"):
        raise bad_request(f"unknown action '{body.action}'")
    return call.without_effect(
        "there are no mirrored queues: each replica is in sync with all of them"
    )


_ONE = "/api/queues/{vhost}/{queue}"

ROUTES = (
    ApiRoute("GET", "/api/queues", list_queues, "The queues", query=_QUERY),
    ApiRoute("GET", "/api/queues/detailed", list_queues, "The queues", query=_QUERY),
    ApiRoute("GET", "/api/queues/{vhost}", list_queues, "Queues", Needs.VHOST, query=_QUERY),
    ApiRoute("GET", _ONE, get_queue, "A queue", Needs.VHOST, query=("columns", *_STATISTICS_QUERY)),
    ApiRoute(
        "GET",
        "/api/queues/quorum/{vhost}/{queue}/status",
        quorum_status,
        "Who leads a quorum queue",
        Needs.VHOST,
        refusals=(503,),
    ),
    ApiRoute(
        "PUT", _ONE, put_queue, "Declare a queue", Needs.VHOST, DeclareQueue, statuses=(201, 204)
    ),
    ApiRoute(
        "DELETE",
        _ONE,
        delete_queue,
        "Delete a queue",
        Needs.VHOST,
        query=("if-unused", "if-empty"),
        statuses=(204,),
    ),
    ApiRoute(
        "DELETE", f"{_ONE}/contents", purge_queue, "Purge a queue", Needs.VHOST, statuses=(204,)
    ),
    ApiRoute(
        "POST",
        f"{_ONE}/actions",
        act_on_queue,
        "Accepted without effect, which is noted",
        Needs.VHOST,
        QueueAction,
        statuses=(204,),
    ),
)
