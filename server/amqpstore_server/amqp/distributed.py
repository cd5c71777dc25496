"""Class dtx on one channel: distributed transactions (PROTOCOL.md describes its methods)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from amqpstore_server.broker.channels.branches import XaStatus, Xid
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.rights.permissions import Access
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.primitives import write_long, write_octets

_Named = (
    methods.DtxStart
    | methods.DtxEnd
    | methods.DtxPrepare
    | methods.DtxCommit
    | methods.DtxRollback
    | methods.DtxForget
    | methods.DtxGetTimeout
    | methods.DtxSetTimeout
)


class Distributed:
    """Handles the methods of class dtx. `send` sends a method, even after the client has left."""

    def __init__(
        self, channel: Channel, access: Access, send: Callable[[methods.Method], None]
    ) -> None:
        self._channel = channel
        self._branches = channel.vhost.branches
        self._access = access
        self._send = send

    def handle(self, method: methods.Method) -> Iterator[None] | None:
        """Carry out a method of class dtx. Returns None, or the steps that do so. Raises:
        BrokerError, as the steps do.
        """
        if not isinstance(method, methods.DtxSelect):
            self._channel.check_branches()
        return DTX_HANDLERS[type(method)](self, method)

    def select(self, _method: methods.DtxSelect) -> None:
        self._channel.select_branches()
        self._send(methods.DtxSelectOk())

    def start(self, method: methods.DtxStart) -> None:
        status = self._branches.start(
            self._channel, self._access, _xid(method), join=method.join, resume=method.resume
        )
        self._send(methods.DtxStartOk(status=status))

    def end(self, method: methods.DtxEnd) -> None:
        status = self._branches.end(
            self._channel, self._access, _xid(method), fail=method.fail, suspend=method.suspend
        )
        self._send(methods.DtxEndOk(status=status))

    def prepare(self, method: methods.DtxPrepare) -> Iterator[None]:
        def told(status: XaStatus) -> None:
            self._send(methods.DtxPrepareOk(status=status))

        failed = self._channel.outlet.failed
        return self._branches.preparing(self._access, _xid(method), told, failed)

    def commit(self, method: methods.DtxCommit) -> Iterator[None]:
        def told(status: XaStatus) -> None:
            self._send(methods.DtxCommitOk(status=status))

        return self._branches.committing(
            self._access,
            _xid(method),
            told,
            self._channel.outlet.failed,
            one_phase=method.one_phase,
        )

    def rollback(self, method: methods.DtxRollback) -> Iterator[None]:
        def told(status: XaStatus) -> None:
            self._send(methods.DtxRollbackOk(status=status))

        return self._branches.rolling_back(self._access, _xid(method), told)

    def forget(self, method: methods.DtxForget) -> None:
        self._branches.forget(self._access, _xid(method))

    def recover(self, _method: methods.DtxRecover) -> None:
        names = [
            write_long(xid.format_id) + write_octets(xid.global_id) + write_octets(xid.branch_id)
            for xid in self._branches.recover(self._access)
        ]
        self._send(methods.DtxRecoverOk(in_doubt=b"".join(names)))

    def get_timeout(self, method: methods.DtxGetTimeout) -> None:
        timeout = self._branches.timeout_s(self._access, _xid(method))
        self._send(methods.DtxGetTimeoutOk(timeout=timeout))

    def set_timeout(self, method: methods.DtxSetTimeout) -> None:
        self._branches.set_timeout(self._access, _xid(method), method.timeout)
        self._send(methods.DtxSetTimeoutOk())


def _xid(method: _Named) -> Xid:
    return Xid(method.format_id, method.global_id, method.branch_id)


DTX_HANDLERS: dict[type[methods.Method], Callable[[Distributed, Any], Iterator[None] | None]] = {
    methods.DtxSelect: Distributed.select,
    methods.DtxStart: Distributed.start,
    methods.DtxEnd: Distributed.end,
    methods.DtxPrepare: Distributed.prepare,
    methods.DtxCommit: Distributed.commit,
    methods.DtxRollback: Distributed.rollback,
    methods.DtxForget: Distributed.forget,
    methods.DtxRecover: Distributed.recover,
    methods.DtxGetTimeout: Distributed.get_timeout,
    methods.DtxSetTimeout: Distributed.set_timeout,
}
"""The handler of each method of class dtx that a client may send."""
