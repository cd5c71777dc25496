"""The broker as a resource manager that a transaction manager drives, with X/Open's names."""

from __future__ import annotations

from typing import TypeVar

from pika.adapters.blocking_connection import BlockingChannel
from pika.amqp_object import Method
from pika.exceptions import ChannelClosedByBroker

from amqpstore_tools.pika import inside, methods
from amqpstore_tools.pika.errors import XaError, XaHeuristicError, XaRolledBackError, refusal
from amqpstore_tools.pika.status import XaStatus
from amqpstore_tools.pika.xid import Xid

CAPABILITY = "dtx"

_Reply = TypeVar("_Reply", bound=Method)


class XaResource:
    """Two-phase commit over one channel, on which it selects dtx.

    Between `start` and `end`, what the channel publishes, acks, nacks and rejects belongs to the
    branch: it happens when the branch is committed, or not at all. After `end`, this or any other
    XaResource of the same user prepares, commits or rolls it back. A branch that is prepared
    survives the loss of the connection, of this process and of the broker, until it is decided; one
    that is not is rolled back with its channel.

    Every method waits for the server's reply; what was prepared or committed is on disk by then.
    Each raises:

    - XaRolledBackError when the branch was rolled back instead, XaHeuristicError when it was
      decided by someone else, and the channel goes on;
    - XaNotFoundError, XaProtocolError and XaAccessRefusedError when the server refuses it, and
      the channel is closed: make another channel, and another XaResource of it;
    - pika's AMQPConnectionError when the connection is lost. The outcome is then unknown: ask
      `recover` on another connection.
    """

    def __init__(self, channel: BlockingChannel) -> None:
        """Select dtx on an open channel that is used for neither tx nor confirms.

        Raises: ExtensionMissingError when the server has no capability `dtx`.
        """
        inside.require(channel, CAPABILITY)
        self._channel = channel
        self._call(methods.Select(), methods.SelectOk)

    def start(self, xid: Xid, *, join: bool = False, resume: bool = False) -> None:
        """Begin work for a branch: a new one, one that others work for too, or a suspended one."""
        self._change(methods.Start(xid, join, resume), methods.StartOk)

    def end(self, xid: Xid, *, fail: bool = False, suspend: bool = False) -> XaStatus:
        """End work for the branch, for good or (suspend) until it is resumed.

        With `fail` the branch can only be rolled back from then on: the status, which is returned,
        is then RBROLLBACK.
        """
        reply = self._call(methods.End(xid, fail, suspend), methods.EndOk)
        if fail and (status := _status(methods.End.NAME, reply.status)).is_rollback:
            return status
        return _checked(methods.End.NAME, reply.status)

    def prepare(self, xid: Xid) -> XaStatus:
        """Ask for the branch's vote. OK: it can be committed, whatever happens from now on.

        RDONLY: it has done no work and is over; do not decide it.
        """
        return self._change(methods.Prepare(xid), methods.PrepareOk)

    def commit(self, xid: Xid, *, one_phase: bool = False) -> None:
        """Commit a prepared branch, or (one_phase) one that has ended and is not prepared."""
        self._change(methods.Commit(xid, one_phase), methods.CommitOk)

    def rollback(self, xid: Xid) -> None:
        """Undo the branch, prepared or not: acked messages are ready again, redelivered."""
        reply = self._call(methods.Rollback(xid), methods.RollbackOk)
        if not _status(methods.Rollback.NAME, reply.status).is_rollback:
            _checked(methods.Rollback.NAME, reply.status)

    def forget(self, xid: Xid) -> None:
        """Have the server forget a branch that was decided without the transaction manager."""
        self._change(methods.Forget(xid), methods.ForgetOk)

    def recover(self) -> list[Xid]:
        """Return the branches in doubt: prepared, not decided, and for this user to decide.

        They may belong to several transaction managers: decide only your own.
        """
        reply = self._call(methods.Recover(), methods.RecoverOk)
        try:
            return Xid.decode_all(reply.in_doubt)
        except ValueError as error:
            raise XaError(f"{methods.RecoverOk.NAME} cannot be read: {error}") from error

    def get_timeout(self, xid: Xid) -> int:
        """Return after how many seconds the branch is rolled back if it is not prepared; 0 is
        never.
        """
        return self._call(methods.GetTimeout(xid), methods.GetTimeoutOk).timeout_s

    def set_timeout(self, xid: Xid, timeout_s: int) -> None:
        """Roll the branch back if it is not prepared within `timeout_s` seconds; 0 means never.

        Raises: ValueError when it is not within 0 to 2**32 - 1.
        """
        if not 0 <= timeout_s < 2**32:
            raise ValueError(f"timeout_s is {timeout_s}: it must be within 0 to 2**32 - 1")
        self._call(methods.SetTimeout(xid, timeout_s), methods.SetTimeoutOk)

    def _change(self, request: methods.Request, reply: type[methods.StatusReply]) -> XaStatus:
        return _checked(request.NAME, self._call(request, reply).status)

    def _call(self, request: methods.Request, reply: type[_Reply]) -> _Reply:
        try:
            return inside.call(self._channel, request, reply)
        except ChannelClosedByBroker as closed:
            raise refusal(request.NAME, closed) from closed


def _status(method: str, number: int) -> XaStatus:
    try:
        return XaStatus(number)
    except ValueError:
        raise XaError(f"{method}: the server answered with the unknown status {number}") from None


def _checked(method: str, number: int) -> XaStatus:
    """Return the status, when it is OK or RDONLY.

    Raises: XaRolledBackError or XaHeuristicError otherwise.
    """
    status = _status(method, number)
    if status.is_rollback:
        raise XaRolledBackError(method, status)
    if status.is_heuristic:
        raise XaHeuristicError(method, status)
    return status
