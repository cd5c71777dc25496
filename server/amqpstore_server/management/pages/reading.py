"""The content of each page, read from the API by a function for each page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.pages import charts, provenance, storing
from amqpstore_server.management.pages.address import PageAddress, Values
from amqpstore_server.management.pages.api import PageApi
from amqpstore_server.management.pages.choosing import ColumnChoice
from amqpstore_server.management.pages.listings import ListPage
from amqpstore_server.management.pages.rights import PageRights, may_declare, rights_on
from amqpstore_server.management.pages.routing import steps_of
from amqpstore_server.management.path_names import segment

_MAX_BINDINGS = 500
_MAX_STEPS = 200
_MAX_QUEUES = 1000
_RECOVERED = ("kept", "redelivered", "lost", "quarantined", "unreadable")
_EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers", "x-consistent-hash")
_MESSAGES = 50


ReadPage = Callable[[PageApi, PageAddress], Awaitable[Values]]


class WebPage(NamedTuple):
    """A page: its address, its template, what it shows, and where it is in the navigation.

    `stream` makes, of what the address says, the address of the events that keep it up to date.
    """

    path: str
    template: str
    read: ReadPage
    section: str
    stream: Callable[[PageAddress], str] = lambda _asked: ""


async def _overview(api: PageApi, _asked: PageAddress) -> Values:
    found = await api.get("overview")
    reading = await charts.overview(api)
    nodes = await api.find("nodes", default=[{}])
    return {
        "figures": reading.figures,
        "memory_limit": nodes[0].get("mem_limit"),
        "disk_limit": nodes[0].get("disk_free_limit"),
        "product": found["product_name"],
        "version": found["product_version"],
        "listeners": found.get("listeners", []),
        "left": found["messages_left"],
        "letters": found["messages_dead_lettered"],
        **await _alarms(api, _asked),
    }


async def _alarms(api: PageApi, _asked: PageAddress) -> Values:
    alarms = []
    for node in await api.find("nodes", default=[]):
        if node.get("mem_alarm"):
            alarms.append(
                (
                    "Publishers wait for memory.",
                    "The process uses more than memory_watermark allows.",
                )
            )
        if node.get("disk_free_alarm"):
            alarms.append(
                (
                    "Publishers wait for disk space.",
                    "Less than least_free_bytes is free on the disk.",
                )
            )
    return {"alarms": [{"title": title, "text": text} for title, text in alarms]}


async def _vhost_names(api: PageApi) -> list[str]:
    return [row["name"] for row in await api.get("vhosts", columns="name")]


async def _open_vhosts(api: PageApi) -> list[str]:
    """Return the virtual hosts in which the user may do something, and not just look."""
    return [name for name in await _vhost_names(api) if api.identity.may_open(name)]


async def _vhosts_to_declare_in(api: PageApi) -> list[str]:
    return [name for name in await _vhost_names(api) if may_declare(api.identity, name)]


async def _list(api: PageApi, asked: PageAddress, name: str) -> Values:
    return {
        "listing": await ListPage.read(api, (name,), asked.query),
        "columns": ColumnChoice.of(name, asked.cookies),
    }


async def _queues(api: PageApi, asked: PageAddress) -> Values:
    listed = await _list(api, asked, "queues")
    return {**listed, "vhosts": await _vhosts_to_declare_in(api)}


async def _queue(api: PageApi, asked: PageAddress) -> Values:
    vhost, name = asked.path["vhost"], asked.path["name"]
    queue = await api.get("queues", vhost, name)
    reading = await charts.queue(vhost, name)(api)
    bindings = await api.get("queues", vhost, name, "bindings")
    purged = await api.find("queues", vhost, name, "purge", default={})
    may = rights_on(api.identity, vhost, "queue", name)
    if queue.get("exclusive"):  # only its owner may do more than look at it
        may = PageRights(read=may.read)
    return {
        "queue": queue,
        "may": may,
        "may_publish": rights_on(api.identity, vhost, "exchange", "").write,
        "figures": reading.figures,
        "bindings": [
            {
                **binding,
                "may_unbind": binding["source"]
                and may.write
                and rights_on(api.identity, vhost, "exchange", binding["source"]).read,
            }
            for binding in bindings[:_MAX_BINDINGS]
        ],
        "more": max(len(bindings) - _MAX_BINDINGS, 0),
        "consumers": queue.get("consumer_details", []),
        "undo": next(iter(purged.get("purges", ())), None),
    }


async def _messages(api: PageApi, asked: PageAddress) -> Values:
    vhost, name = asked.path["vhost"], asked.path["name"]
    query = {key: value for key, value in asked.query.items() if value}
    query.setdefault("limit", str(_MESSAGES))
    found = await api.get("queues", vhost, name, "messages", **query)
    names = await api.get("queues", vhost, columns="name", page=1, page_size=200)
    following = {**query, "start": found["next"]} if found.get("next") else None
    return {
        "queue": await api.get("queues", vhost, name),
        "messages": found["messages"],
        "asked": {key: query.get(key, "") for key in ("start", "limit", "filter")},
        "next_link": _messages_link(vhost, name, following) if following else "",
        "targets": [row["name"] for row in names["items"] if row["name"] != name],
    }


def _messages_link(vhost: str, name: str, query: Mapping[str, object]) -> str:
    asked = "&".join(f"{key}={segment(str(value))}" for key, value in query.items())
    return f"/queues/{segment(vhost)}/{segment(name)}/messages?{asked}"


async def _exchanges(api: PageApi, asked: PageAddress) -> Values:
    listed = await _list(api, asked, "exchanges")
    overview = await api.get("overview")
    types = [one["name"] for one in overview.get("exchange_types", [])] or list(_EXCHANGE_TYPES)
    return {**listed, "vhosts": await _vhosts_to_declare_in(api), "types": types}


async def _exchange(api: PageApi, asked: PageAddress) -> Values:
    vhost, name = asked.path["vhost"], asked.path["name"]
    exchange = await api.get("exchanges", vhost, name)
    # The default exchange has a binding for each queue, which says nothing.
    bindings = (
        await api.get("exchanges", vhost, name, "bindings", "source") if exchange["name"] else []
    )
    may = rights_on(api.identity, vhost, "exchange", exchange["name"])
    return {
        "exchange": exchange,
        "may": may,
        "may_explain": api.identity.may_open(vhost),
        "bindings": [
            {
                **binding,
                "may_unbind": may.read
                and rights_on(
                    api.identity, vhost, binding["destination_type"], binding["destination"]
                ).write,
            }
            for binding in bindings[:_MAX_BINDINGS]
        ],
        "more": max(len(bindings) - _MAX_BINDINGS, 0),
    }


async def _explain(api: PageApi, asked: PageAddress) -> Values:
    query = asked.query
    vhosts = await _open_vhosts(api)
    shown = {key: query.get(key, "") for key in ("exchange", "routing_key", "headers")}
    shown["vhost"] = query.get("vhost") or (vhosts[0] if vhosts else "")
    answer = None
    problem = ""
    if "routing_key" in query:
        try:
            headers = msgspec.json.decode(shown["headers"] or "{}")
            body = {"routing_key": shown["routing_key"], "headers": headers}
            explanation = await api.ask(
                "POST",
                f"/api/exchanges/{segment(shown['vhost'])}/"
                f"{segment(shown['exchange'] or 'amq.default')}/explain",
                body=body,
            )
            answer = steps_of(explanation, shown["vhost"])
        except msgspec.DecodeError as error:
            problem = f"the headers are not valid JSON: {error}"
        except HttpError as error:
            problem = error.reason
    return {"asked": shown, "vhosts": vhosts, "answer": answer, "problem": problem}


async def _connections(api: PageApi, asked: PageAddress) -> Values:
    return await _list(api, asked, "connections")


async def _connection(api: PageApi, asked: PageAddress) -> Values:
    name = asked.path["name"]
    found = await api.get("connections", name)
    return {
        "connection": found,
        "channels": await api.get("connections", name, "channels"),
        "may_close": api.identity.is_administrator or found["user"] == api.identity.user,
    }


async def _channels(api: PageApi, asked: PageAddress) -> Values:
    return await _list(api, asked, "channels")


async def _policies(api: PageApi, _asked: PageAddress) -> Values:
    vhosts = await _vhost_names(api)
    identity = api.identity
    own = [name for name in vhosts if identity.is_administrator or identity.may_open(name)]
    of_operators = vhosts if identity.is_administrator else []
    return {
        "groups": (
            ("policies", "Policies", await api.get("policies"), own),
            (
                "operator-policies",
                "Operator policies",
                await api.get("operator-policies"),
                of_operators,
            ),
        ),
    }


async def _users(api: PageApi, _asked: PageAddress) -> Values:
    users = await api.get("users")
    permissions = await api.get("permissions")
    vhosts: dict[str, list[str]] = {}
    for row in permissions:
        vhosts.setdefault(row["user"], []).append(row["vhost"])
    rows = [
        {
            "name": user["name"],
            "tags": user["tags"],
            "vhosts": vhosts.get(user["name"], []),
            "has_password": bool(user.get("password_hash")),
        }
        for user in users
    ]
    return {"users": rows}


async def _user(api: PageApi, asked: PageAddress) -> Values:
    name = asked.path["name"]
    account = await api.get("users", name)
    return {
        "account": account,
        "groups": (
            (
                "permissions",
                "Permissions",
                ("configure", "write", "read"),
                await api.get("users", name, "permissions"),
            ),
            (
                "topic-permissions",
                "Topic permissions",
                ("exchange", "write", "read"),
                await api.get("users", name, "topic-permissions"),
            ),
        ),
        "vhosts": await _vhost_names(api),
    }


async def _vhosts(api: PageApi, _asked: PageAddress) -> Values:
    limits = {row["vhost"]: row["value"] for row in await api.find("vhost-limits", default=[])}
    rows = [{"limits": limits.get(row["name"], {}), **row} for row in await api.get("vhosts")]
    return {"rows": rows}


async def _reports(api: PageApi, _asked: PageAddress) -> Values:
    return {"reports": await api.get("store", "reports")}


async def _report(api: PageApi, asked: PageAddress) -> Values:
    report = await api.get("store", "reports", asked.path["name"])
    queues = report["content"].get("queues", ())
    touched = [queue for queue in queues if any(queue[key] for key in _RECOVERED)]
    for scenario in report["content"].get("scenarios", ()):
        steps = scenario["timeline"]
        # Violations are never left out.
        shown = [step for at, step in enumerate(steps) if at < _MAX_STEPS or step["is_violated"]]
        scenario |= {"timeline": shown, "more": len(steps) - len(shown)}
    return {
        "report": report,
        "content": report["content"],
        "queues": touched[:_MAX_QUEUES],
        "more_queues": max(len(touched) - _MAX_QUEUES, 0),
        "empty_queues": len(queues) - len(touched),
    }


PAGES = (
    WebPage("/", "overview.html", _overview, "/", lambda _asked: "/stream/overview"),
    WebPage("/overview/alarms", "alarms.html", _alarms, "/"),
    WebPage("/queues", "queues.html", _queues, "/queues", lambda _asked: "/stream/tables"),
    WebPage(
        "/queues/{vhost}/{name}",
        "queue.html",
        _queue,
        "/queues",
        lambda asked: (
            f"/stream/queues/{segment(asked.path['vhost'])}/{segment(asked.path['name'])}"
        ),
    ),
    WebPage("/queues/{vhost}/{name}/messages", "messages.html", _messages, "/queues"),
    WebPage(
        "/queues/{vhost}/{name}/messages/{position}", "message.html", provenance.read, "/queues"
    ),
    WebPage(
        "/queues/{vhost}/{name}/messages/{position}/provenance",
        "provenance.html",
        provenance.read_trails,
        "/queues",
    ),
    WebPage(
        "/exchanges", "exchanges.html", _exchanges, "/exchanges", lambda _asked: "/stream/tables"
    ),
    WebPage(
        "/exchanges/{vhost}/{name}",
        "exchange.html",
        _exchange,
        "/exchanges",
        lambda asked: (
            f"/stream/exchanges/{segment(asked.path['vhost'])}/{segment(asked.path['name'])}"
        ),
    ),
    WebPage("/explain", "explain.html", _explain, "/exchanges"),
    WebPage(
        "/connections",
        "connections.html",
        _connections,
        "/connections",
        lambda _asked: "/stream/tables",
    ),
    WebPage(
        "/connections/{name}",
        "connection.html",
        _connection,
        "/connections",
        lambda asked: f"/stream/connections/{segment(asked.path['name'])}",
    ),
    WebPage("/channels", "channels.html", _channels, "/channels", lambda _asked: "/stream/tables"),
    WebPage("/policies", "policies.html", _policies, "/policies"),
    WebPage("/users", "users.html", _users, "/users"),
    WebPage("/users/{name}", "user.html", _user, "/users"),
    WebPage("/vhosts", "vhosts.html", _vhosts, "/vhosts"),
    WebPage("/store", "store.html", storing.read, "/store", lambda _asked: "/stream/store"),
    WebPage("/reports", "reports.html", _reports, "/store"),
    WebPage("/reports/{name}", "report.html", _report, "/store"),
)
"""All pages, what is spelled out before what is in braces."""

STREAMS: dict[str, Callable[[Mapping[str, str]], charts.ReadNow]] = {
    "/stream/overview": lambda _path: charts.overview,
    "/stream/tables": lambda _path: charts.nothing,
    "/stream/store": lambda _path: charts.store,
    "/stream/queues/{vhost}/{name}": lambda path: charts.queue(path["vhost"], path["name"]),
    "/stream/exchanges/{vhost}/{name}": lambda path: charts.exchange(path["vhost"], path["name"]),
    "/stream/connections/{name}": lambda path: charts.connection(path["name"]),
}
"""The functions that read the events of each stream, by its address."""
