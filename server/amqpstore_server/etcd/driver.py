"""Carries out on an etcd what a member of a group asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from amqpstore_server.cluster.effects import (
    Attempt,
    EtcdEffect,
    Grant,
    KeepAlive,
    ReadKeys,
    Revoke,
    ShowAlive,
)
from amqpstore_server.cluster.keys import View
from amqpstore_server.cluster.tenure import Outcome
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import EtcdError, NotFitError
from amqpstore_server.etcd.lanes import Lane
from amqpstore_server.etcd.presence import Presence
from amqpstore_server.etcd.watching import Watching

_log = logging.getLogger(__name__)


class EtcdAnswers(Protocol):
    """Takes what etcd answers, in threads of the driver: to be handed to the methods of the same
    names of `GroupMember`, in its own thread and with the time.
    """

    def viewed(self, view: View) -> None: ...

    def etcd_is_another(self, reason: str) -> None:
        """The etcd that answers is not the one that is known."""

    def granted(self, lease: int) -> None: ...

    def grant_failed(self) -> None: ...

    def attempted(self, request: str, outcome: Outcome, revision: int) -> None: ...

    def kept_alive(self, lease: int, asked_at: float, *, is_alive: bool) -> None: ...


class EtcdDriver:
    """Four threads: a watch, keep-alives, the key that shows that this member runs, and everything
    else in the order it was asked for, but for a read, before which a lease or a transaction goes.

    A read or a keep-alive without an answer is not reported: the member asks again.

    Args: is_fit, whether disk and event loop make progress: without it, no lease is kept alive.
    """

    def __init__(
        self,
        client: EtcdClient,
        answers: EtcdAnswers,
        lease_s: float,
        is_fit: Callable[[], bool],
    ) -> None:
        self._client = client
        self._answers = answers
        self._lease_s = lease_s
        self._is_fit = is_fit
        self._was_fit = True
        self._requests = Lane("etcd requests", self._request, _is_same_read, _is_waited_for)
        # In a thread of their own: leadership must not be lost to a slow transaction.
        self._renewals = Lane("etcd keep-alives", self._keep_alive, _is_same_lease)
        # This client has to work where the other one refuses the etcd that it finds: this key is
        # how people see why.
        self._presence_client = client.without_identity()
        # A status is left out while another one waits for a slow etcd: the member shows itself
        # again soon.
        self._showing = Lane(
            "etcd presence", Presence(self._presence_client).show, lambda _, __: True
        )
        self._watching = Watching(client, answers.viewed)

    def carry_out(self, effect: EtcdEffect) -> None:
        """Begin to carry out an effect; never blocks."""
        if isinstance(effect, KeepAlive):
            self._renewals.put(effect)
        elif isinstance(effect, ShowAlive):
            self._showing.put(effect)
        else:
            self._requests.put(effect)

    def close(self) -> None:
        """Return when all threads have ended: at most a few seconds if etcd does not answer."""
        # The lane of requests is closed last: a resignation may still be on its way.
        self._watching.close()
        self._renewals.close()
        self._showing.close()
        self._requests.close()
        self._presence_client.close()

    def _request(self, effect: ReadKeys | Grant | Attempt | Revoke) -> None:
        match effect:
            case ReadKeys():
                self._read()
            case Grant():
                self._grant()
            case Attempt(transaction):
                attempted = self._client.attempt(transaction)
                if attempted.reason:
                    _log.warning(
                        "a transaction in etcd has no certain outcome"
                        if attempted.outcome == "unknown"
                        else "a transaction in etcd was refused",
                        extra={"request": transaction.request, "reason": attempted.reason},
                    )
                self._answers.attempted(transaction.request, attempted.outcome, attempted.revision)
            case Revoke(lease):
                self._revoke(lease)

    def _read(self) -> None:
        try:
            view = self._client.read()
        except EtcdError:
            # No answer at all is normal during an outage, and the member asks again. Another etcd
            # has to be told: it is the one case in which trying again is dangerous.
            if reason := self._client.objection:
                self._answers.etcd_is_another(reason)
            return
        self._answers.viewed(view)

    def _grant(self) -> None:
        try:
            lease = self._client.grant(self._lease_s)
        except EtcdError:
            self._answers.grant_failed()
            return
        self._answers.granted(lease)

    def _revoke(self, lease: int) -> None:
        try:
            self._client.revoke(lease)
        except EtcdError:
            return  # it ends by itself

    def _keep_alive(self, effect: KeepAlive) -> None:
        try:
            kept = self._client.keep_alive(effect.lease, self._is_fit)
        except EtcdError:
            return
        except NotFitError:
            # The warning is logged once, not three times in each lease.
            if self._was_fit:
                _log.warning("the lease is not renewed: disk or event loop make no progress")
            self._was_fit = False
            return
        self._was_fit = True
        self._answers.kept_alive(effect.lease, kept.asked_at, is_alive=kept.is_alive)


def _is_same_read(last: object, effect: object) -> bool:
    return isinstance(last, ReadKeys) and isinstance(effect, ReadKeys)


def _is_waited_for(last: object, effect: object) -> bool:
    """Tell whether a grant or an attempt would wait for a read: a candidate waits for it, and a
    later read sees more.
    """
    # A candidate's lease runs from when it is asked for: behind a read that takes a second, half
    # of it would be gone before the election is attempted.
    return isinstance(last, ReadKeys) and isinstance(effect, Grant | Attempt)


def _is_same_lease(last: KeepAlive, effect: KeepAlive) -> bool:
    return last == effect
