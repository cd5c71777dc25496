"""The exceptions of this package; all of them are pika's AMQPError too."""

from __future__ import annotations

import re
from typing import ClassVar

from pika.exceptions import AMQPError, ChannelClosedByBroker

from amqpstore_tools.pika.status import XaStatus


class _PicklableAmqpError(AMQPError):
    """An error of pika's kind that goes through pools of processes."""

    def __reduce__(self) -> tuple[object, ...]:
        # As a PicklableError of the engine, which this package does not know.
        return Exception.__new__, (self.__class__, *self.args), self.__dict__


class ExtensionMissingError(_PicklableAmqpError):
    """The server does not announce a capability that is needed."""

    def __init__(self, capability: str, server: str) -> None:
        super().__init__(
            f"the server ({server}) does not announce the capability {capability!r} in "
            "connection.start: connect to an amqpstore that has it"
        )
        self.capability = capability
        self.server = server


class PikaChangedError(_PicklableAmqpError):
    """Raised when this release of pika does not have the private parts that this package needs."""

    def __init__(self, version: str, missing: str) -> None:
        super().__init__(
            f"pika {version} has no {missing}, which amqpstore_tools.pika needs: "
            "use the pika release that constraints.txt names"
        )
        self.version = version
        self.missing = missing


class XaError(_PicklableAmqpError):
    """The server did not do what a method of class dtx asked for."""


class XaRolledBackError(XaError):
    """The branch was rolled back instead. It is over; the channel stays open."""

    def __init__(self, method: str, status: XaStatus) -> None:
        super().__init__(f"{method}: the branch was rolled back ({status.name})")
        self.status = status


class XaHeuristicError(XaError):
    """The branch was decided without the transaction manager. `forget` ends it."""

    def __init__(self, method: str, status: XaStatus) -> None:
        super().__init__(
            f"{method}: the branch was decided without the transaction manager ({status.name}); "
            "compare both sides, then forget it"
        )
        self.status = status


class XaRefusedError(XaError):
    """The server closed the channel because of a method of class dtx: continue on another
    channel.
    """

    usual_xa_code: ClassVar[str] = "XAER_RMERR"

    def __init__(self, method: str, reply_code: int, reply_text: str) -> None:
        super().__init__(f"{method}: {reply_code} {reply_text}")
        self.reply_code = reply_code
        self.reply_text = reply_text
        named = _XA_CODE.search(reply_text)
        self.xa_code = named[0] if named else self.usual_xa_code
        """The error code of X/Open's xa.h, such as XAER_DUPID."""


class XaNotFoundError(XaRefusedError):
    """404: the server knows no such branch (XAER_NOTA)."""

    usual_xa_code = "XAER_NOTA"


class XaProtocolError(XaRefusedError):
    """406: not in this state (XAER_PROTO), with these arguments (XAER_INVAL), or the name is taken
    (XAER_DUPID)."""

    usual_xa_code = "XAER_PROTO"


class XaAccessRefusedError(XaRefusedError):
    """403: the branch is another user's, and this user has no permission to decide it."""


_XA_CODE = re.compile(r"\bXAER_[A-Z]+")
_KINDS = {404: XaNotFoundError, 406: XaProtocolError, 403: XaAccessRefusedError}


def refusal(method: str, closed: ChannelClosedByBroker) -> XaRefusedError:
    """Return the exception for a channel that the server closed in answer to a method."""
    kind = _KINDS.get(closed.reply_code, XaRefusedError)
    return kind(method, closed.reply_code, closed.reply_text)
