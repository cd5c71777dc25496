"""Exchanges: list, declare, delete."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from amqpstore_server.administration.tables import shown_table
from amqpstore_server.broker.definitions.accepted import exchange_notes
from amqpstore_server.broker.monitoring.counters import ExchangeCounters
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.management.answers import Answer, created, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import not_found
from amqpstore_server.management.listing import ABSENT, MADE, Columns
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute
from amqpstore_server.management.topology import carry_out, checked_arguments, exchange_in
from amqpstore_server.protocol import methods

_STATISTICS_QUERY = ("msg_rates_age", "msg_rates_incr")
_QUERY = (*LIST_QUERY, *_STATISTICS_QUERY)


class DeclareExchange(msgspec.Struct):
    """The body of a request that declares an exchange."""

    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] | list[Any] = {}


class ExchangeShown(NamedTuple):
    """An exchange as it is listed; that is also the default one, whose name is empty."""

    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    counters: ExchangeCounters
    policy: str | None


def exchange_columns(call: Call) -> Columns[ExchangeShown]:
    """Return the columns of exchanges."""
    statistics, ranges = call.context.statistics, call.ranges
    return Columns(
        {
            "name": lambda one: one.name,
            "vhost": lambda one: one.vhost,
            "type": lambda one: one.type,
            "durable": lambda one: one.durable,
            "auto_delete": lambda one: one.auto_delete,
            "internal": lambda one: one.internal,
            "arguments": lambda one: shown_table(one.arguments),
            "policy": lambda one: one.policy or ABSENT,
            "user_who_performed_action": lambda _: "",
        },
        lambda one: statistics.exchange(one.counters, ranges),
    )


def exchanges_of(vhost: VirtualHost) -> list[ExchangeShown]:
    """Return the exchanges of a virtual host."""
    default = ExchangeShown(
        vhost.name, "", "direct", True, False, False, {}, vhost.router.default_counters, None
    )
    return [default, *(_shown(vhost, name) for name in vhost.exchanges)]


def _shown(vhost: VirtualHost, name: str) -> ExchangeShown:
    exchange = vhost.exchanges[name]
    policy = vhost.policies.of_exchange(name)
    return ExchangeShown(
        vhost.name,
        name,
        exchange.type,
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        exchange.arguments,
        exchange.counters,
        policy.name if policy else None,
    )


def shown_exchange(call: Call, parameter: str = "exchange") -> ExchangeShown:
    """Return the exchange in the path. Raises: HttpError."""
    name = exchange_in(call, parameter)
    if name and name not in call.vhost.exchanges:
        raise not_found(f"no exchange '{name}' in vhost '{call.vhost.name}'")
    return exchanges_of(call.vhost)[0] if not name else _shown(call.vhost, name)


async def list_exchanges(call: Call) -> Answer:
    """Return the exchanges that the user may see, or those of a virtual host."""
    if "vhost" in call.path:
        vhosts = [call.vhost]
    else:
        vhosts = [call.context.broker.vhosts[name] for name in call.identity.visible_vhosts()]
    found = [one for vhost in vhosts for one in exchanges_of(vhost)]
    return await call.listed(found, exchange_columns(call))


async def get_exchange(call: Call) -> Answer:
    """Return an exchange."""
    one = shown_exchange(call)
    row = exchange_columns(call).row(one)
    row["notes"] = exchange_notes(one.type, one.arguments)
    return await call.row({**row, "incoming": [], "outgoing": []}, MADE)


async def put_exchange(call: Call) -> Answer:
    """Declare an exchange."""
    body = await call.body(DeclareExchange)
    name = exchange_in(call)
    is_new = name not in call.vhost.exchanges
    await carry_out(
        call,
        methods.ExchangeDeclare(
            exchange=name,
            type=body.type,
            durable=body.durable,
            auto_delete=body.auto_delete,
            internal=body.internal,
            arguments=checked_arguments(body.arguments),
        ),
    )
    call.note(exchange_notes(body.type, checked_arguments(body.arguments)))
    return created() if is_new else no_content()


async def delete_exchange(call: Call) -> Answer:
    """Delete an exchange."""
    one = shown_exchange(call)
    method = methods.ExchangeDelete(exchange=one.name, if_unused=call.is_condition("if-unused"))
    await carry_out(call, method)
    return no_content()


_ONE = "/api/exchanges/{vhost}/{exchange}"

ROUTES = (
    ApiRoute("GET", "/api/exchanges", list_exchanges, "The exchanges", query=_QUERY),
    ApiRoute(
        "GET", "/api/exchanges/{vhost}", list_exchanges, "Exchanges", Needs.VHOST, query=_QUERY
    ),
    ApiRoute(
        "GET", _ONE, get_exchange, "An exchange", Needs.VHOST, query=("columns", *_STATISTICS_QUERY)
    ),
    ApiRoute(
        "PUT",
        _ONE,
        put_exchange,
        "Declare an exchange",
        Needs.VHOST,
        DeclareExchange,
        statuses=(201, 204),
    ),
    ApiRoute(
        "DELETE",
        _ONE,
        delete_exchange,
        "Delete an exchange",
        Needs.VHOST,
        query=("if-unused",),
        statuses=(204,),
    ),
)
