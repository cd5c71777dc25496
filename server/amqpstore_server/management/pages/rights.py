"""The rights of the user on what a page shows: a button that the API would refuse is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqpstore_server.broker.errors import AccessRefusedError, NotAllowedError

if TYPE_CHECKING:
    from amqpstore_server.broker.rights.permissions import Access
    from amqpstore_server.management.login import Identity


class PageRights(NamedTuple):
    """The permissions on one queue or exchange."""

    configure: bool = False
    write: bool = False
    read: bool = False


def rights_on(identity: Identity, vhost: str, kind: str, name: str) -> PageRights:
    """Return the permissions of a user on a queue or an exchange: none, where it may only look."""
    try:
        access = identity.access(vhost)
    except NotAllowedError:
        return PageRights()
    return PageRights(*(_has(access, one, kind, name) for one in PageRights._fields))


def may_declare(identity: Identity, vhost: str) -> bool:
    """Tell whether a user may declare anything in a virtual host."""
    try:
        return identity.access(vhost).may_any("configure")
    except NotAllowedError:
        return False


def _has(access: Access, permission: str, kind: str, name: str) -> bool:
    try:
        access.check(permission, kind, name)
    except AccessRefusedError:
        return False
    return True
