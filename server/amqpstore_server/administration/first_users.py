"""The users that a broker has before anybody has added one.

That is the one that the configuration names, or else `guest`, with a password that everybody knows,
who may log in from this machine only. A broker that
listens beyond it, and has no other user, gets an administrator with a random password: another one
at each start until somebody has logged in with one, as it is printed once, and stored nowhere.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Iterable
from functools import lru_cache

from amqpstore_server.administration.telling import user_events
from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.logins.users import DEFAULT_PASSWORD, DEFAULT_USER, Users

ADMINISTRATOR = "administrator"

_PASSWORD_BYTES = 18

_log = logging.getLogger(__name__)


def define_first(broker: Broker, users: Users, name: str = "", password: str = "") -> None:
    """Add the user of a new store: `guest`, or the one that the configuration names."""
    if not users.is_empty:
        if name and users.row(name) is None:
            reason = "the store has users already: add it with `amqpstore users add`"
            _log.warning("default_user not added", extra={"user": name, "reason": reason})
        return
    name, secret = (name, password.encode()) if name else (DEFAULT_USER, DEFAULT_PASSWORD)
    # In this order: a crash in between leaves permissions without a user, which the next start
    # completes. The other order would leave a user without permissions for good.
    broker.define_permissions(name, DEFAULT_VHOST, ALL)
    users.define(name, {**users.hashed(secret), "tags": ["administrator"]})


def define_administrator(broker: Broker, users: Users, hosts: Iterable[str]) -> str:
    """Add an administrator, if the broker listens beyond loopback and has no user but `guest`; give
    it another password, if the present one has not been used for a login yet.

    Returns the password, which is not stored in plain text anywhere; empty if none was made.
    Args: hosts, the addresses that the broker listens on.
    """
    if all(map(is_loopback, hosts)):
        return ""
    present = users.row(ADMINISTRATOR) or {}
    is_new = users.names == [DEFAULT_USER]
    if not is_new and "is_generated" not in present:
        return ""
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    row = {"tags": ["administrator"], **present, **users.hashed(password.encode())}
    row["is_generated"] = True
    granted = {(ADMINISTRATOR, name): dict(ALL) for name in broker.vhosts} if is_new else {}
    broker.define(Defined(permissions=granted), users.changes({ADMINISTRATOR: row}))
    users.have({ADMINISTRATOR: row})
    events = user_events(ADMINISTRATOR, None if is_new else present, row)
    broker.services.events.happened(
        "user set", *events, by=By("amqpstore", "start"), target=ADMINISTRATOR, tags="administrator"
    )
    return password


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Tell whether an address is this machine's loopback, including IPv4 mapped into IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
