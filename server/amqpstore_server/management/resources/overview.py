"""The whole broker: totals, and the one node that it is."""

from __future__ import annotations

from typing import Any

import msgspec

from amqpstore_server.administration import parameters as kept
from amqpstore_server.administration.definitions import GlobalParameter
from amqpstore_server.broker.monitoring.counters import ChannelCounters
from amqpstore_server.broker.monitoring.departures import (
    Departures,
    dead_lettered,
    labelled,
    reasons_of_all,
)
from amqpstore_server.management.answers import Answer, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.clients import channels_of, connections_of
from amqpstore_server.management.errors import bad_request, not_found
from amqpstore_server.management.listing import MADE
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.node import (
    context_rows,
    exchange_type_rows,
    listener_rows,
    login_rows,
    memory_row,
    node_row,
    python_version,
    relative_memory_row,
)
from amqpstore_server.management.routes import ApiRoute

_CLUSTER_NAME = "cluster_name"
_QUERY = ("columns", "msg_rates_age", "msg_rates_incr", "lengths_age", "lengths_incr")


class NameBody(msgspec.Struct):
    """A name."""

    name: str


def cluster_name(call: Call) -> str:
    """Return the name of the broker: the parameter that RabbitMQ keeps it in, or the node's."""
    return call.context.broker.global_parameters.cluster_name or call.context.node


async def overview(call: Call) -> Answer:
    """Return the totals of what the user may see."""
    context, identity = call.context, call.identity
    visible = identity.visible_vhosts()
    row: dict[str, Any] = {
        "management_version": context.product.version,
        "rates_mode": "basic",
        "sample_retention_policies": {
            "global": [600, 3600, 28800, 86400],
            "basic": [600, 3600],
            "detailed": [600],
        },
        "exchange_types": exchange_type_rows(context),
        "product_version": context.product.version,
        "product_name": context.product.name,
        "rabbitmq_version": context.product.version,
        "cluster_name": cluster_name(call),
        "cluster_tags": {},
        "node_tags": {},
        "erlang_version": python_version(),
        "erlang_full_version": python_version(),
        "release_series_support_status": "supported",
        "disable_stats": False,
        "is_op_policy_updating_enabled": True,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
        "node": context.node,
        "object_totals": _object_totals(call, visible),
        **context.statistics.overview(call.ranges, None if identity.is_monitor else visible),
        **_departures(call, None if identity.is_monitor else visible),
    }
    if identity.is_monitor:
        row["listeners"] = listener_rows(context)
        row["contexts"] = context_rows(context)
    return await call.row(row, MADE)


def _object_totals(call: Call, visible: list[str]) -> dict[str, int]:
    vhosts = [call.context.broker.vhosts[name] for name in visible]
    connections = connections_of(call.context, call.identity)
    queues = [queue for vhost in vhosts for queue in vhost.queues.values() if queue.is_listed]
    return {
        "connections": len(connections),
        "channels": len(channels_of(connections)),
        "exchanges": sum(len(vhost.exchanges) + 1 for vhost in vhosts),
        "queues": len(queues),
        "consumers": sum(len(queue.consumers) for queue in queues),
    }


def _departures(call: Call, visible: list[str] | None) -> dict[str, Any]:
    """Return how messages have left, in some virtual hosts, or in all that there ever were."""
    broker = call.context.broker
    if visible is None:
        departures, counters = broker.departures(), broker.counters()
    else:
        departures, counters = Departures(), ChannelCounters()
        for name in visible:
            departures.add(broker.vhosts[name].departures)
            counters.add(broker.vhosts[name].counters)
    return {
        "messages_left": labelled(reasons_of_all(departures, counters)),
        "messages_dead_lettered": labelled(dead_lettered(departures)),
    }


async def get_cluster_name(call: Call) -> Answer:
    """Return the name of the broker."""
    return await call.json({"name": cluster_name(call)})


async def put_cluster_name(call: Call) -> Answer:
    """Set the name of the broker."""
    body = await call.body(NameBody)
    try:
        asked = GlobalParameter(name=_CLUSTER_NAME, value=body.name)
    except ValueError as error:
        raise bad_request(str(error)) from None
    await call.carry_out(kept.set_global_parameter(call.context.administration, call.by, asked))
    return no_content()


async def list_nodes(call: Call) -> Answer:
    """Return the nodes, of which there is one."""
    return await call.listed([node_row(call.context)], MADE, ("name",))


def _check_node(call: Call) -> None:
    node = call.context.node
    # Tools for RabbitMQ may look for the name that its node would have on this host.
    if call.path["node"] not in (node, f"rabbit@{node.partition('@')[2]}"):
        raise not_found(f"no node '{call.path['node']}'")


async def get_node(call: Call) -> Answer:
    """Return the node, and with `memory=true` what its memory is used for."""
    _check_node(call)
    row = node_row(call.context)
    if call.is_true("memory"):
        row["memory"] = memory_row(call.context)
    return await call.row(row, MADE)


async def get_memory(call: Call) -> Answer:
    """Return what the node's memory is used for."""
    _check_node(call)
    return await call.json({"memory": memory_row(call.context)})


async def get_relative_memory(call: Call) -> Answer:
    """Return what the node's memory is used for, in percent."""
    _check_node(call)
    return await call.json({"memory": relative_memory_row(call.context)})


async def get_logins(call: Call) -> Answer:
    """Return how often clients have tried to log in."""
    _check_node(call)
    return await call.json(login_rows(call.context))


_RABBITMQ_FLAGS = {
    "classic_mirrored_queue_version",
    "classic_queue_type_delivery_support",
    "detailed_queues_endpoint",
    "direct_exchange_routing_v2",
    "drop_unroutable_metric",
    "empty_basic_get_metric",
    "feature_flags_v2",
    "implicit_default_bindings",
    "khepri_db",
    "listener_records_in_ets",
    "maintenance_mode_status",
    "message_containers",
    "message_containers_deaths_v2",
    "quorum_queue",
    "quorum_queue_non_voters",
    "rabbit_exchange_type_local_random",
    "rabbitmq_4.0.0",
    "rabbitmq_4.1.0",
    "restart_streams",
    "stream_filtering",
    "stream_queue",
    "stream_sac_coordinator_unblock_group",
    "stream_single_active_consumer",
    "stream_update_config_command",
    "tracking_records_in_ets",
    "user_limits",
    "virtual_host_metadata",
}
"""The feature flags of RabbitMQ 4, which scripts enable after an upgrade."""


_FLAGS = {
    "direct_exchange_routing_v2": "Routing through direct exchanges looks up the routing key",
    "drop_unroutable_metric": "Messages that are dropped because no queue is bound are counted",
    "empty_basic_get_metric": "Gets that find no message are counted",
    "implicit_default_bindings": "Bindings to the default exchange are not stored",
    "quorum_queue": "Queues of the type quorum",
    "user_limits": "Limits of the connections and channels of a user",
    "virtual_host_metadata": "Description, tags and default queue type of virtual hosts",
}
"""The feature flags of RabbitMQ whose features exist here; they are always on."""


async def list_flags(call: Call) -> Answer:
    """Return the feature flags of RabbitMQ whose features are here."""
    rows = [
        {
            "name": name,
            "desc": description,
            "doc_url": "",
            "state": "enabled",
            "stability": "required",
            "provided_by": "rabbit",
        }
        for name, description in _FLAGS.items()
    ]
    return await call.json(rows)


async def enable_flag(call: Call) -> Answer:
    """Accept that a feature of RabbitMQ is to be enabled: there is nothing to enable."""
    flag = call.path["flag"]
    if flag not in _RABBITMQ_FLAGS:
        raise bad_request(f"unsupported: there is no feature flag '{flag}'")
    if flag in _FLAGS:
        return call.without_effect(f"the feature flag '{flag}' is always on")
    return call.without_effect(
        f"the feature flag '{flag}' is of RabbitMQ, and there is no such feature"
    )


async def list_nothing(call: Call) -> Answer:
    """Return an empty list."""
    return await call.json([])


async def extensions(call: Call) -> Answer:
    """Return the extensions of the pages."""
    return await call.json([{"javascript": "dispatcher.js"}])


async def reset(call: Call) -> Answer:
    """Accept that the statistics are to be forgotten: they forget by themselves."""
    return call.without_effect("counts go on, and what charts show is forgotten with its time")


async def rebalance(call: Call) -> Answer:
    """Accept that the leaders of queues are to be spread over nodes: there is one for all."""
    return call.without_effect("all queues have the same leader, and each replica has all of them")


_NOTED = "Accepted without effect, which is noted"
_MONITORING, _ADMINISTRATOR = Needs.MONITORING, Needs.ADMINISTRATOR

ROUTES = (
    ApiRoute("GET", "/api/overview", overview, "Totals", query=_QUERY),
    ApiRoute("GET", "/api/cluster-name", get_cluster_name, "The name of the broker"),
    ApiRoute(
        "PUT",
        "/api/cluster-name",
        put_cluster_name,
        "Name the broker",
        _ADMINISTRATOR,
        NameBody,
        statuses=(204,),
    ),
    ApiRoute(
        "GET", "/api/nodes", list_nodes, "The nodes", _MONITORING, query=("columns",), is_list=True
    ),
    ApiRoute(
        "GET",
        "/api/nodes/{node}",
        get_node,
        "A node",
        _MONITORING,
        query=("columns", "memory"),
    ),
    ApiRoute("GET", "/api/nodes/{node}/memory", get_memory, "A node's memory", _MONITORING),
    ApiRoute(
        "GET",
        "/api/nodes/{node}/memory/relative",
        get_relative_memory,
        "A node's memory in percent",
        _MONITORING,
    ),
    ApiRoute(
        "GET",
        "/api/auth/attempts/{node}",
        get_logins,
        "How often clients have tried to log in",
        _MONITORING,
        is_list=True,
    ),
    ApiRoute("GET", "/api/feature-flags", list_flags, "Feature flags", _MONITORING, is_list=True),
    ApiRoute(
        "PUT",
        "/api/feature-flags/{flag}/enable",
        enable_flag,
        _NOTED,
        _ADMINISTRATOR,
        statuses=(204,),
    ),
    # Monitoring asks for them, as they may be stuck: there are none.
    *(
        ApiRoute("GET", path, list_nothing, summary, needs, is_list=True)
        for path, summary, needs in (
            ("/api/shovels", "Shovels", _MONITORING),
            ("/api/shovels/{vhost}", "Shovels", Needs.VHOST),
            ("/api/federation-links", "Links of federation", _MONITORING),
            ("/api/federation-links/{vhost}", "Links of federation", Needs.VHOST),
        )
    ),
    ApiRoute(
        "GET",
        "/api/deprecated-features",
        list_nothing,
        "Deprecated features",
        _MONITORING,
        is_list=True,
    ),
    ApiRoute(
        "GET",
        "/api/deprecated-features/used",
        list_nothing,
        "Deprecated features that are used",
        _MONITORING,
        is_list=True,
    ),
    ApiRoute("GET", "/api/extensions", extensions, "Extensions of the pages", is_list=True),
    ApiRoute("DELETE", "/api/reset", reset, _NOTED, _ADMINISTRATOR, statuses=(204,)),
    ApiRoute("DELETE", "/api/reset/{node}", reset, _NOTED, _ADMINISTRATOR, statuses=(204,)),
    ApiRoute("POST", "/api/rebalance/queues", rebalance, _NOTED, _ADMINISTRATOR, statuses=(204,)),
)
