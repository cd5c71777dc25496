"""The numbers of AMQP 0-9-1 that more than one module needs."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
"""The first bytes of a client (section 4.2.2): the protocol's name, id 0 and version 0-9-1."""

PROTOCOL_HEADERS: Final = frozenset(
    {
        PROTOCOL_HEADER,
        b"AMQP\x01\x01\x00\x09",
        b"AMQP\x01\x01\x08\x00",
        b"AMQP\x01\x01\x09\x01",
    }
)
"""The first bytes of clients that speak 0-9-1: its own, and those of 0-9 and 0-8 that older clients
send.
"""

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8

FRAME_END: Final = 0xCE
"""The octet after every frame's payload (section 4.2.3)."""

FRAME_MIN_SIZE: Final = 4096
"""The frame size that both peers accept before connection.tune, and the smallest frame-max."""

REPLY_SUCCESS: Final = 200
"""The reply code of a close without an error."""


class ReplyCode(IntEnum):
    """The reasons for which a channel or a connection is closed, with the specification's names."""

    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541
