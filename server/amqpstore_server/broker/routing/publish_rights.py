"""The right of a user to publish: the one place where rights are asked for a message, by whatever
road it is published.

- To publish to an exchange, over AMQP or HTTP, in a transaction of either kind or not, takes the
  permission to write to it, and to write with each routing key, those in CC and BCC too, if it is a
  topic exchange; no user publishes to an internal one. The same is asked for each dead letter that
  is replayed through its exchange.
- To put messages straight into a queue, moved, copied, replayed or restored, takes the permission
  to write to the queue, by its name.
- To replay a history takes those to read the queue, and to publish to any queue by its name.
- Who publishes names no other user in user-id, but for those who may impersonate others. Whatever
  moves, copies or replays a message leaves its user-id as it is: that of its publisher.

What the broker tells of, events and the copies of the firehose, it publishes itself, to exchanges
that are internal: no user publishes there, and who binds a queue to them may read them.

A dead letter, and what a binding between exchanges or an alternate exchange passes on, the broker
publishes itself: rights were asked for when that was declared, and internal exchanges are there
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE

if TYPE_CHECKING:
    from amqpstore_server.broker.rights.permissions import Rights
    from amqpstore_server.broker.routing.routing import Router


class PublishRights:
    """The right of a user with `rights` in a virtual host to publish there. Args: router, of the
    virtual host.
    """

    def __init__(self, router: Router, rights: Rights) -> None:
        self._router = router
        self._rights = rights

    def check(self, exchange: str, keys: Iterable[str]) -> None:
        """Make sure that a message may be published to an exchange with these routing keys.

        Raises: AccessRefusedError, NotFoundError.
        """
        self.check_exchange(exchange)
        self.check_keys(exchange, keys)
        self._router.check(exchange)

    def check_exchange(self, exchange: str) -> None:
        """Make sure of the permission to write to an exchange. Raises: AccessRefusedError."""
        self._rights.check("write", "exchange", exchange)

    def check_keys(self, exchange: str, keys: Iterable[str]) -> None:
        """Make sure that these routing keys may be used, if the exchange is a topic exchange.

        Raises: AccessRefusedError.
        """
        if self._router.is_topic(exchange):
            for key in keys:
                self._rights.check_topic("write", exchange, key)

    def check_queue(self, name: str) -> None:
        """Make sure that messages may be put straight into a queue. Raises: AccessRefusedError."""
        self._rights.check("write", "queue", name)

    def check_history(self, queue: str) -> None:
        """Make sure that the history of a queue may be replayed into queues. Raises:
        AccessRefusedError.
        """
        self._rights.check("read", "queue", queue)
        self._rights.check("write", "exchange", DEFAULT_EXCHANGE)


def check_user_id(user_id: str | None, user: str, may_impersonate: Callable[[], bool]) -> bool:
    """Make sure that a user may publish with a user-id. Returns whether it is that of another user.

    Raises: PreconditionFailedError.
    """
    if user_id is None or user_id == user:
        return False
    if not may_impersonate():
        raise PreconditionFailedError(
            f"user_id property set to '{user_id}' but authenticated user was '{user}'"
        )
    return True
