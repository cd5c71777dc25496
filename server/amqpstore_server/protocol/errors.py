"""Errors of a peer, one class for each reply code of the specification.

The base class says what the error ends: a ChannelException its channel, a ConnectionException the
connection, a FatalFramingError the socket.
"""

# ruff: noqa: N818 - the names are the specification's

from __future__ import annotations

from typing import ClassVar, Self

from amqpstore_server.protocol.spec import ReplyCode

_REPLY_TEXT_BYTES = 255
"""The size of a short string."""


class AmqpError(Exception):
    """Raised for one of the reply codes; only the subclasses of the two kinds have one.

    Args: detail, what was wrong, as text for the client. `class_id` and `method_id` name the method
    that caused the error, 0 if none: see `at`.
    """

    reply_code: ClassVar[ReplyCode]
    reply_name: ClassVar[str]

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.class_id = 0
        self.method_id = 0

    def __init_subclass__(cls) -> None:
        if "reply_code" in vars(cls):
            cls.reply_name = cls.reply_code.name

    def __str__(self) -> str:
        return f"{self.reply_name} - {self.detail}"

    def at(self, class_id: int, method_id: int) -> Self:
        """Return the error with the ids of the method that caused it; called by whoever handles the
        method.
        """
        self.class_id = class_id
        self.method_id = method_id
        return self

    @property
    def reply_text(self) -> str:
        """The text of a close method, cut between characters to the 255 bytes of a short string."""
        encoded = str(self).encode(errors="replace")
        return encoded[:_REPLY_TEXT_BYTES].decode(errors="ignore")


class ChannelException(AmqpError):
    """A soft error: it closes the channel, and the connection goes on."""


class ConnectionException(AmqpError):
    """A hard error: it closes the connection."""


class FatalFramingError(Exception):
    """The frame boundaries of the stream are lost: the socket is closed and nothing more is sent
    (4.2.3).
    """


class ContentTooLarge(ChannelException):
    """A message is larger than the server accepts."""

    reply_code = ReplyCode.CONTENT_TOO_LARGE


class NoRoute(ChannelException):
    """A mandatory message has no queue. Used by basic.return only; it closes nothing."""

    reply_code = ReplyCode.NO_ROUTE


class NoConsumers(ChannelException):
    """No consumer could take an immediate message at once."""

    reply_code = ReplyCode.NO_CONSUMERS


class AccessRefused(ChannelException):
    """The user may not do this, or another connection or consumer has the queue exclusively."""

    reply_code = ReplyCode.ACCESS_REFUSED


class NotFound(ChannelException):
    """A queue or an exchange of that name does not exist."""

    reply_code = ReplyCode.NOT_FOUND


class ResourceLocked(ChannelException):
    """The queue is exclusive to another connection."""

    reply_code = ReplyCode.RESOURCE_LOCKED


class PreconditionFailed(ChannelException):
    """The method does not match the state of what exists."""

    reply_code = ReplyCode.PRECONDITION_FAILED


class ConnectionForced(ConnectionException):
    """The server stops, or an operator closed the connection."""

    reply_code = ReplyCode.CONNECTION_FORCED


class InvalidPath(ConnectionException):
    """The virtual host does not exist, or its name is invalid."""

    reply_code = ReplyCode.INVALID_PATH


class FrameError(ConnectionException):
    """A frame is too large, or a content header is invalid."""

    reply_code = ReplyCode.FRAME_ERROR


class MalformedError(ConnectionException):
    """The content of a frame cannot be decoded (the specification's SYNTAX_ERROR)."""

    reply_code = ReplyCode.SYNTAX_ERROR


class CommandInvalid(ConnectionException):
    """A method that is not valid in this state."""

    reply_code = ReplyCode.COMMAND_INVALID


class ChannelError(ConnectionException):
    """A channel that is not open, or is open already."""

    reply_code = ReplyCode.CHANNEL_ERROR


class UnexpectedFrame(ConnectionException):
    """A frame out of sequence, such as a body without a header."""

    reply_code = ReplyCode.UNEXPECTED_FRAME


class ResourceError(ConnectionException):
    """The server does not have enough of some resource."""

    reply_code = ReplyCode.RESOURCE_ERROR


class NotAllowed(ConnectionException):
    """The request is never allowed, whatever exists."""

    reply_code = ReplyCode.NOT_ALLOWED


class NotImplementedByServer(ConnectionException):
    """The server does not implement what the method asks for."""

    reply_code = ReplyCode.NOT_IMPLEMENTED


class InternalError(ConnectionException):
    """An internal error of the server, not the client's fault."""

    reply_code = ReplyCode.INTERNAL_ERROR
