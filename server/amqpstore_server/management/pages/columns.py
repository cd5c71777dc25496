"""The columns that the lists of queues, exchanges, connections and channels can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from amqpstore_server.management.pages import formats

NAME = "name"
"""The key of the column that each list has; the template writes its cells, which are links."""

Row = Mapping[str, Any]


class ListColumn(NamedTuple):
    """A column of a list.

    `key` names it where it is chosen, under the heading `group`; `cell` writes what it has of a
    row, and `sort` is the path by which the API sorts it, if it can. `is_usual` is whether it is
    shown until somebody chooses, and `is_wide` whether a phone leaves it out until then.
    """

    key: str
    label: str
    group: str
    cell: Callable[[Row], Any]
    sort: str = ""
    kind: str = ""
    is_usual: bool = False
    is_wide: bool = False


def _name(label: str) -> ListColumn:
    return ListColumn(NAME, label, "", lambda _row: "", "name", "name", is_usual=True)


def _text(
    key: str, label: str, group: str, path: str = "", *, usual: bool = False, wide: bool = False
) -> ListColumn:
    """Return a column of texts: names, as users and clients give them."""
    path = path or key

    def cell(row: Row) -> Markup:
        return Markup("<bdi>{}</bdi>").format(_inside(row, path) or "")

    return ListColumn(key, label, group, cell, path, is_usual=usual, is_wide=wide)


def _number(
    key: str,
    label: str,
    group: str,
    path: str = "",
    write: Callable[[Any], str] = formats.number,
    *,
    usual: bool = False,
    wide: bool = False,
) -> ListColumn:
    """Return a column of numbers or times, which `write` writes."""
    path = path or key

    def cell(row: Row) -> str:
        return write(_inside(row, path))

    return ListColumn(key, label, group, cell, path, "number", usual, wide)


def _rate(key: str, label: str, *, usual: bool = False, wide: bool = False) -> ListColumn:
    """Return a column of the rates of a counter of messages."""
    path = f"message_stats.{key}_details.rate"
    return _number(key, label, "Rates", path, formats.per_second, usual=usual, wide=wide)


def _inside(row: Row, path: str) -> Any:
    found: Any = row
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _queue_kind(row: Row) -> Markup:
    parts = [Markup("{}").format(row.get("type", "")), *map(formats.badge, formats.flags(row))]
    if row.get("state", "running") not in formats.GOOD_STATES:
        parts.append(formats.badge(row["state"], "bad"))
    return Markup(" ").join(parts)


def _exchange_properties(row: Row) -> Markup:
    flags = [*formats.flags(row), *(["internal"] if row.get("internal") else [])]
    return Markup(" ").join(map(formats.badge, flags))


def _arguments(row: Row) -> Markup:
    found = row.get("arguments")
    return Markup("<code>{}</code>").format(formats.json(found)) if found else Markup("")


def _connection_state(row: Row) -> Markup:
    state = formats.state(row)
    return state + " " + formats.badge("TLS") if row.get("ssl") else state


def _client(row: Row) -> Markup:
    found = row.get("client_properties") or {}
    said = [str(found[key]) for key in ("product", "version") if found.get(key)]
    return Markup("<bdi>{}</bdi>").format(" ".join(said))


def _tls(row: Row) -> str:
    return f"{row['ssl_protocol']} {row['ssl_cipher']}" if row.get("ssl") else "none"


def _mode(row: Row) -> str:
    if row.get("transactional"):
        return "transactions"
    return "confirms" if row.get("confirm") else "plain"


def _prefetch(value: Any) -> str:
    return formats.number(value) if value else "any"


def _heartbeat(seconds: Any) -> str:
    return f"{seconds} s" if seconds else "none"


def _share(value: Any) -> str:
    return f"{value:.0%}" if isinstance(value, int | float) else "-"


def _since(text: Any) -> str:
    """Write a time that the API has as text, in UTC to the second."""
    return f"{text[:10]} {text[11:19]} UTC" if isinstance(text, str) else "-"


_VHOST = _text("vhost", "Virtual host", "Overview", usual=True, wide=True)
_NODE = _text("node", "Node", "Overview")
_POLICY = _text("policy", "Policy", "Overview")
_ARGUMENTS = ListColumn("arguments", "Arguments", "Overview", _arguments, kind="name")

_QUEUES = (
    _VHOST,
    _name("Name"),
    ListColumn("kind", "Kind", "Overview", _queue_kind, "", "kind", is_usual=True, is_wide=True),
    _ARGUMENTS,
    _POLICY,
    _text("operator_policy", "Operator policy", "Overview"),
    _text("owner", "Owner", "Overview", "owner_pid_details.name"),
    _NODE,
    _number("idle_since", "Idle since", "Overview", write=_since),
    _number("ready", "Ready", "Messages", "messages_ready", usual=True),
    _number("unacked", "Unacked", "Messages", "messages_unacknowledged", usual=True),
    _number("waiting", "Waiting dead letters", "Messages", "messages_dlx"),
    _number("total", "Total", "Messages", "messages", usual=True),
    _number("persistent", "Persistent", "Messages", "messages_persistent"),
    _number("ram", "Bodies in memory", "Messages", "messages_ram"),
    _number("bytes_ready", "Bytes ready", "Bytes", "message_bytes_ready", formats.size),
    _number(
        "bytes_unacked", "Bytes unacked", "Bytes", "message_bytes_unacknowledged", formats.size
    ),
    _number("bytes", "Bytes", "Bytes", "message_bytes", formats.size),
    _number("bytes_ram", "Bytes of bodies in memory", "Bytes", "message_bytes_ram", formats.size),
    _number("memory", "In memory", "Bytes", write=formats.size, usual=True, wide=True),
    _rate("publish", "In", usual=True),
    _rate("deliver_get", "Out", usual=True),
    _rate("redeliver", "Redelivered"),
    _rate("ack", "Acks", usual=True, wide=True),
    _number("consumers", "Consumers", "Consumers", usual=True, wide=True),
    _number("capacity", "Consumer capacity", "Consumers", "consumer_capacity", _share),
    _text("active_consumer", "Single active consumer", "Consumers", "single_active_consumer_tag"),
)
_EXCHANGES = (
    _VHOST,
    _name("Name"),
    _text("type", "Type", "Overview", usual=True),
    ListColumn(
        "properties", "Properties", "Overview", _exchange_properties, is_usual=True, is_wide=True
    ),
    _ARGUMENTS,
    _POLICY,
    _rate("publish_in", "In", usual=True),
    _rate("publish_out", "Out", usual=True),
)
_CONNECTIONS = (
    _name("Name"),
    _text("user", "User", "Overview", usual=True),
    _VHOST,
    ListColumn("state", "State", "Overview", _connection_state, "state", is_usual=True),
    ListColumn("client", "Client", "Overview", _client, is_usual=True, is_wide=True),
    _number("channels", "Channels", "Overview", usual=True),
    _NODE,
    _number(
        "from_client",
        "From client",
        "Network",
        "recv_oct_details.rate",
        formats.bytes_per_second,
        usual=True,
    ),
    _number(
        "to_client",
        "To client",
        "Network",
        "send_oct_details.rate",
        formats.bytes_per_second,
        usual=True,
    ),
    _number("received", "From client in all", "Network", "recv_oct", formats.size),
    _number("sent", "To client in all", "Network", "send_oct", formats.size),
    _number("connected_at", "Since", "Details", write=formats.moment),
    _text("protocol", "Protocol", "Details"),
    ListColumn("tls", "TLS", "Details", _tls, "ssl_protocol"),
    _text("login", "Login by", "Details", "auth_mechanism"),
    _number("heartbeat", "Heartbeat", "Details", "timeout", _heartbeat),
    _number("frame_max", "Largest frame", "Details", write=formats.size),
    _number("channel_max", "Channels at most", "Details"),
)
_CHANNELS = (
    _name("Channel"),
    _text("user", "User", "Overview", usual=True, wide=True),
    _text("vhost", "Virtual host", "Overview"),
    ListColumn("mode", "Mode", "Overview", _mode, is_usual=True),
    ListColumn("state", "State", "Overview", formats.state, "state", is_usual=True),
    _NODE,
    _number("consumers", "Consumers", "Details", "consumer_count", usual=True, wide=True),
    _number("prefetch", "Prefetch", "Details", "prefetch_count", _prefetch, usual=True, wide=True),
    _number(
        "channel_prefetch", "Prefetch of the channel", "Details", "global_prefetch_count", _prefetch
    ),
    _number("unacked", "Unacked", "Details", "messages_unacknowledged", usual=True),
    _number("unconfirmed", "Unconfirmed", "Details", "messages_unconfirmed", usual=True),
    _number("uncommitted", "Uncommitted", "Details", "messages_uncommitted"),
    _number("uncommitted_acks", "Uncommitted acks", "Details", "acks_uncommitted"),
    _rate("publish", "Published", usual=True),
    _rate("confirm", "Confirmed"),
    _rate("return_unroutable", "Returned"),
    _rate("drop_unroutable", "Without a route"),
    _rate("deliver_get", "Delivered", usual=True),
    _rate("redeliver", "Redelivered"),
    _rate("ack", "Acks"),
)

LISTS: Mapping[str, tuple[ListColumn, ...]] = {
    "queues": _QUEUES,
    "exchanges": _EXCHANGES,
    "connections": _CONNECTIONS,
    "channels": _CHANNELS,
}
"""The columns of each list, in their order."""
