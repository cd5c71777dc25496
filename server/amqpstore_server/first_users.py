"""The users that a broker has before anybody has added one.

`guest`, with a password that everybody knows, may log in from this machine only. A broker that
listens beyond it, and has no other user, gets an administrator with a random password.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable

from amqpstore_server.administration.telling import user_events
from amqpstore_server.broker.audit import By
from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.permissions import ALL
from amqpstore_server.broker.predeclared import DEFAULT_VHOST
from amqpstore_server.users import DEFAULT_PASSWORD, DEFAULT_USER, Users

ADMINISTRATOR = "administrator"

_PASSWORD_BYTES = 18


def define_guest(broker: Broker, users: Users) -> None:
    """Add the user of a new store."""
    if users.is_empty:
        # In this order: a crash in between leaves permissions without a user, which the next start
        # completes. The other order would leave a user without permissions for good.
        broker.define_permissions(DEFAULT_USER, DEFAULT_VHOST, ALL)
        row = {**users.hashed(DEFAULT_PASSWORD), "tags": ["administrator"]}
        users.define(DEFAULT_USER, row)


def define_administrator(broker: Broker, users: Users, hosts: Iterable[str]) -> str:
    """Add an administrator, if the broker listens beyond loopback and has no user but `guest`.

    Returns the password, which is known to nobody else and stored nowhere; empty if none was added.
    Args: hosts, the addresses that the broker listens on.
    """
    if users.names != [DEFAULT_USER] or all(map(is_loopback, hosts)):
        return ""
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    row = {**users.hashed(password.encode()), "tags": ["administrator"]}
    granted = {(ADMINISTRATOR, name): dict(ALL) for name in broker.vhosts}
    broker.define(Defined(permissions=granted), users.changes({ADMINISTRATOR: row}))
    users.have({ADMINISTRATOR: row})
    events = user_events(ADMINISTRATOR, None, row)
    broker.context.events.happened(
        "user set", *events, by=By("amqpstore", "start"), target=ADMINISTRATOR, tags="administrator"
    )
    return password


def is_loopback(host: str) -> bool:
    """Tell whether an address is this machine's loopback, including IPv4 mapped into IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
