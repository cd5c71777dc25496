"""The requests to etcd, each to the first endpoint that answers.

A request that changes nothing, or may safely happen twice, goes to the next endpoint after any
failure. A transaction does so only if no endpoint can have received it: without an answer it may
have happened, or may happen later, and a second one must not be mistaken for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import ceil
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from amqpstore_server.cluster.keys import FLOOR, EtcdTransaction, View, alive_key
from amqpstore_server.cluster.tenure import Outcome
from amqpstore_server.etcd import messages
from amqpstore_server.etcd.endpoint import Endpoint, EndpointLines
from amqpstore_server.etcd.errors import (
    CompactedError,
    EndpointError,
    EtcdUnavailableError,
    LeaseGoneError,
    MalformedAnswerError,
    NotFitError,
    OtherEtcdError,
)
from amqpstore_server.etcd.identity import EtcdIdentity, IdentityCheck
from amqpstore_server.etcd.messages import Header
from amqpstore_server.etcd.settings import EtcdSettings

_log = logging.getLogger(__name__)

# The time is short beside a lease of a few seconds: a keep-alive has to reach another endpoint
# before that is over.
TIMEOUT_S = 1.0
SILENCE_S = 3.0
"""How long a watch may be silent: then it begins anew, at an endpoint that answers."""


class _Answer(Protocol):
    @property
    def header(self) -> Header: ...


_Shape = TypeVar("_Shape", bound=_Answer)
_Result = TypeVar("_Result")


class Attempted(NamedTuple):
    """The outcome of a transaction, and etcd's revision after it; `reason` says why it is unknown.

    It is refused if a compare does not hold, or a lease is gone: then it never happens.
    """

    outcome: Outcome
    revision: int = 0
    reason: str = ""


class KeptAlive(NamedTuple):
    """Whether a lease is there, and when the renewal was sent that was answered."""

    is_alive: bool
    asked_at: float


class EtcdClient:
    """Speaks to one etcd about the keys under a prefix; safe in all threads.

    Args: known, what this process, or an earlier one, knows of that etcd.
    """

    def __init__(
        self,
        settings: EtcdSettings,
        prefix: str,
        known: EtcdIdentity | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoints = [Endpoint(url, settings, timeout_s) for url in settings.endpoints]
        self._settings = settings
        self._timeout_s = timeout_s
        self._prefix = prefix
        self._identity = IdentityCheck(known or EtcdIdentity())
        self._clock = clock
        self._first = 0
        """The endpoint that is asked first: the one that answered last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections that are idle."""
        for endpoint in self._endpoints:
            endpoint.close()

    @property
    def identity(self) -> EtcdIdentity:
        """The identity of the etcd: the next process has to know it."""
        return self._identity.known

    @property
    def objection(self) -> str:
        """The reason why the etcd that answers is not the one that is known; empty if it is, or
        none does.
        """
        return self._identity.objection

    def without_identity(self) -> EtcdClient:
        """Return another client, that knows nothing of this etcd and takes any."""
        return EtcdClient(
            self._settings, self._prefix, timeout_s=self._timeout_s, clock=self._clock
        )

    # Requests.

    def read(self) -> View:
        """Read all keys under the prefix, linearizably. Raises: EtcdError."""
        request = messages.range_request(self._prefix)
        return self._ask(
            "/v3/kv/range",
            request,
            messages.RangeAnswer,
            lambda answer: messages.view(answer, self._prefix),
        )

    def grant(self, ttl_s: float) -> int:
        """Grant a lease, and return its id. Raises: EtcdError."""
        asked_s = ceil(ttl_s)

        def lease_of(answer: messages.GrantAnswer) -> int:
            # An etcd with a long election timeout grants no short ones. But a candidate counts on
            # its request being dead after the time that it has asked for.
            if answer.ttl_s > asked_s:
                # A request under a longer lease could be carried out after its candidate has
                # counted it as dead.
                raise MalformedAnswerError(
                    f"a lease of {asked_s} s was asked for, and one of {answer.ttl_s} s was "
                    "granted: configure longer leases, or a shorter election timeout of etcd"
                )
            return answer.lease

        request = messages.grant_request(asked_s)
        return self._ask("/v3/lease/grant", request, messages.GrantAnswer, lease_of)

    def keep_alive(self, lease: int, is_fit: Callable[[], bool] = lambda: True) -> KeptAlive:
        """Renew a lease, once.

        Args: is_fit, asked before each attempt: nothing is sent for a caller that hangs.

        Raises: EtcdError, NotFitError.
        """
        request = messages.lease_request(lease)
        problems = []
        for endpoint in self._in_order():
            # Before it is sent: from when on etcd counts the lease is not known, but it is no
            # earlier.
            asked_at = self._clock()
            # This is asked before each endpoint, not once: the attempt before may have taken a
            # second, in which the disk began to hang.
            if not is_fit():
                raise NotFitError
            try:
                is_alive = self._exchange(
                    endpoint,
                    "/v3/lease/keepalive",
                    request,
                    messages.KeepAliveAnswer,
                    lambda answer: answer.result.ttl_s > 0,
                    # Its header has the revision of the member that was asked, which may be behind
                    # the others.
                    is_linearizable=False,
                )
            except EndpointError as error:
                problems.append(error)
            else:
                return KeptAlive(is_alive, asked_at)
        raise EtcdUnavailableError(tuple(problems))

    def revoke(self, lease: int) -> None:
        """End a lease, with the keys under it, if it is there. Raises: EtcdError."""
        # The lease is gone, which is what was asked for.
        with suppress(LeaseGoneError):
            request = messages.lease_request(lease)
            self._ask("/v3/lease/revoke", request, messages.RevokeAnswer, lambda _: None)

    def attempt(self, transaction: EtcdTransaction) -> Attempted:
        """Carry out a transaction, once."""
        request = messages.transaction_request(transaction, self._prefix)
        problems = []
        for endpoint in self._in_order():
            try:
                return self._exchange(
                    endpoint, "/v3/kv/txn", request, messages.TransactionAnswer, _attempted
                )
            except LeaseGoneError as error:
                return Attempted("refused", 0, error.reason)
            except EndpointError as error:
                problems.append(error)
                # It may happen later still, and a second one could not be told from it. jetcd has
                # repeated such requests, and lost updates by it (Jepsen, 2024).
                if error.may_happen:
                    break
            except OtherEtcdError as error:
                return Attempted("unknown", 0, str(error))
        return Attempted("unknown", 0, str(EtcdUnavailableError(tuple(problems))))

    def watch(self, revision: int) -> EtcdWatch:
        """Begin to watch the keys under the prefix, for changes from a revision on.

        Raises: EtcdError.
        """
        request = messages.watch_request(self._prefix, revision)
        problems = []
        for endpoint in self._in_order():
            # Raises for an etcd whose revisions went back: events of a restored one tell of other
            # changes under the same numbers.
            self._identity.begin()
            try:
                lines = endpoint.lines("/v3/watch", request, SILENCE_S)
            except EndpointError as error:
                self._failed(endpoint, error)
                problems.append(error)
            else:
                return EtcdWatch(endpoint.url, lines, self._identity, self._prefix, revision)
        raise EtcdUnavailableError(tuple(problems))

    # Endpoints.

    def _in_order(self) -> list[Endpoint]:
        first = self._first
        return self._endpoints[first:] + self._endpoints[:first]

    def _ask(
        self,
        path: str,
        request: bytes,
        shape: type[_Shape],
        understand: Callable[[_Shape], _Result],
    ) -> _Result:
        """Return what the first endpoint says whose answer can be understood."""
        problems = []
        for endpoint in self._in_order():
            try:
                return self._exchange(endpoint, path, request, shape, understand)
            # etcd has answered, and every other endpoint would say the same.
            except LeaseGoneError:
                raise
            except EndpointError as error:
                problems.append(error)
        raise EtcdUnavailableError(tuple(problems))

    def _exchange(
        self,
        endpoint: Endpoint,
        path: str,
        request: bytes,
        shape: type[_Shape],
        understand: Callable[[_Shape], _Result],
        *,
        is_linearizable: bool = True,
    ) -> _Result:
        """Send a request to one endpoint. Raises: EndpointError, OtherEtcdError."""
        # Taken before the request is sent: an answer that was overtaken by another thread's is
        # older, and not a sign that etcd went back.
        least = self._identity.begin()
        try:
            answer = messages.decode(endpoint.post(path, request), shape)
            self._identity.check(answer.header, least if is_linearizable else None)
            result = understand(answer)
        except (MalformedAnswerError, OtherEtcdError) as error:
            problem = EndpointError(endpoint.url, str(error), may_happen=True)
            self._failed(endpoint, problem)
            raise problem from None
        except LeaseGoneError:
            raise
        except EndpointError as error:
            self._failed(endpoint, error)
            raise
        self._answered(endpoint)
        return result

    def _failed(self, endpoint: Endpoint, error: EndpointError) -> None:
        """Ask the next endpoint first, from now on."""
        # The order changes only if this endpoint is still the first: two threads that fail at it
        # must not skip the next one.
        number = self._endpoints.index(endpoint)
        if number == self._first:
            self._first = (number + 1) % len(self._endpoints)
        if not endpoint.is_failing:
            endpoint.is_failing = True
            _log.warning("etcd fails", extra={"endpoint": endpoint.url, "reason": error.reason})

    def _answered(self, endpoint: Endpoint) -> None:
        if endpoint.is_failing:
            endpoint.is_failing = False
            _log.info("etcd answers again", extra={"endpoint": endpoint.url})


def _attempted(answer: messages.TransactionAnswer) -> Attempted:
    # A compare that does not hold is an answer, and a certain one: the transaction never happens.
    return Attempted("done" if answer.succeeded else "refused", answer.header.revision)


class EtcdWatch:
    """A watch that has begun; to be closed."""

    def __init__(
        self,
        url: str,
        lines: EndpointLines,
        identity: IdentityCheck,
        prefix: str,
        revision: int,
    ) -> None:
        # Neither the keys that show who runs nor the floor, which moves all the time: members read
        # each second anyway.
        # Each of those keys changes every second or so; each hint costs a read of all keys.
        self._quiet = ((prefix + alive_key("")).encode(), (prefix + FLOOR).encode())
        self._url = url
        self._lines = lines
        self._identity = identity
        self._revision = revision

    def changes(self) -> Iterator[int]:
        """Yield etcd's revision at each change, but for changes of keys that only show who runs, or
        how far.

        Ends when etcd ends it, or is silent for too long: then the keys are to be read, as after
        an error.

        Raises: CompactedError, EndpointError.
        """
        for line in self._lines:
            try:
                answer = messages.decode(line, messages.WatchLine)
                if answer.result is not None:
                    self._identity.check(answer.result.header, None)
            # The watch is not begun again at once: see `Watching`, which waits and reads first.
            except (MalformedAnswerError, OtherEtcdError) as error:
                raise EndpointError(self._url, str(error), may_happen=False) from None
            if answer.result is not None and answer.result.compact_revision:
                raise CompactedError(self._revision, answer.result.compact_revision)
            if answer.result is None or answer.result.canceled:
                reason = f"the watch ended: {messages.excerpt(line)}"
                raise EndpointError(self._url, reason, may_happen=False)
            if any(not one.kv.key.startswith(self._quiet) for one in answer.result.events):
                yield answer.result.header.revision

    def stop(self) -> None:
        """End it, in whatever thread it is read."""
        self._lines.stop()

    def close(self) -> None:
        """Close its connection."""
        self._lines.close()
