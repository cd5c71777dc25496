"""The states of a connection and of a channel on the server's side: states, events, two tables.

    client                 server                       state behind it
                                                        GREETING
    protocol header  -->
                     <--   connection.start             STARTING
    start-ok         -->                                AUTHENTICATING, until the login is checked
                     <--   connection.tune              TUNING
    tune-ok          -->                                OPENING
    connection.open  -->
                     <--   connection.open-ok           OPEN
                     <--   connection.blocked           BLOCKED, until connection.unblocked
    close            -->
                     <--   connection.close-ok          CLOSED: the client closes its socket
                     <--   connection.close             CLOSING: all is ignored but close, close-ok
    close-ok         -->                                DRAINING

House rules:

1. A state changes only by an event, along its table; an event that the table does not have in a
   state is not legal there. There are no half-states: objects that a state needs exist while it
   lasts, and no other field repeats the state.
2. An event of the client that the table does not have ends the connection: before OPEN without a
   close method, as section 2.2.4 demands, and with 503 or 504 from then on. After the end, in
   CLOSING, CLOSED, DRAINING and ABANDONED, and on a channel that is FAILING or CLOSING, it is
   dropped. So is a frame that is wrong, as long as the frames behind it can be found.
3. Events of the server, from FAULT on, must be in the table wherever they can happen: a KeyError
   there is an internal error, and closes the connection with 541.
4. Each end is reached once. A connection sends one connection.close at most, on its way to CLOSING,
   and releases everything it holds when it leaves OPEN and BLOCKED.
   From CLOSED and DRAINING only ABANDONED can follow: in both the outbox is still sent, and input
   is read and dropped; in ABANDONED neither. In CLOSED the client closes its socket first.
5. A channel that failed first keeps its promises: FAILING lasts until what it published is durable
   and confirmed, CLOSING from channel.close to the client's close-ok. If the client's own close
   crosses that channel.close, it is answered, and the channel still waits for its close-ok.
"""

from __future__ import annotations

import enum

from amqpstore_server.protocol import methods


class _Hashable(enum.Enum):
    """Members are hashed as any object is: there is one of each. By itself an enum hashes the name,
    in Python, and each look-up in a table calls that.
    """

    __hash__ = object.__hash__


class ConnectionState(_Hashable):
    """The state of a connection."""

    GREETING = "no protocol header"
    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "open"
    BLOCKED = "blocked"
    CLOSING = "closing"
    CLOSED = "closed by its client"
    DRAINING = "draining"
    ABANDONED = "abandoned"


class ConnectionEvent(_Hashable):
    """The events of a connection: first those of the client, then those of the server."""

    HEADER = "the protocol header of a version that is spoken here"
    START_OK = "connection.start-ok"
    TUNE_OK = "connection.tune-ok"
    OPEN = "connection.open"
    UPDATE_SECRET = "connection.update-secret"  # noqa: S105
    CHANNEL_FRAME = "something on another channel than 0"
    CLOSE = "connection.close"
    CLOSE_OK = "connection.close-ok"

    GRANTED = "the login is right"
    REFUSED = "the login is wrong, and the client can be told, or the virtual host is not for it"
    BLOCK = "the disk is low: publishers have to wait"
    UNBLOCK = "the disk has room again"
    FAULT = "an error that has a reply code"
    SHUT_DOWN = "the server stops, or an operator has ended the rights of the client"
    END = "there is nobody to talk to, or nothing to say: not AMQP, out of time, or gone"
    ABANDON = "the client does not answer"


_ENDS = {
    ConnectionEvent.FAULT: ConnectionState.DRAINING,
    ConnectionEvent.SHUT_DOWN: ConnectionState.DRAINING,
    ConnectionEvent.END: ConnectionState.DRAINING,
    ConnectionEvent.ABANDON: ConnectionState.ABANDONED,
}
"""The end of a connection when no reply is due."""

_SERVED = {
    ConnectionEvent.UPDATE_SECRET: ConnectionState.OPEN,
    ConnectionEvent.CHANNEL_FRAME: ConnectionState.OPEN,
    ConnectionEvent.CLOSE: ConnectionState.CLOSED,
    ConnectionEvent.FAULT: ConnectionState.CLOSING,
    ConnectionEvent.SHUT_DOWN: ConnectionState.CLOSING,
    ConnectionEvent.END: ConnectionState.DRAINING,
    ConnectionEvent.ABANDON: ConnectionState.ABANDONED,
}

CONNECTION: dict[ConnectionState, dict[ConnectionEvent, ConnectionState]] = {
    ConnectionState.GREETING: {ConnectionEvent.HEADER: ConnectionState.STARTING, **_ENDS},
    ConnectionState.STARTING: {ConnectionEvent.START_OK: ConnectionState.AUTHENTICATING, **_ENDS},
    ConnectionState.AUTHENTICATING: {
        ConnectionEvent.GRANTED: ConnectionState.TUNING,
        ConnectionEvent.REFUSED: ConnectionState.CLOSING,
        **_ENDS,
    },
    ConnectionState.TUNING: {ConnectionEvent.TUNE_OK: ConnectionState.OPENING, **_ENDS},
    ConnectionState.OPENING: {
        ConnectionEvent.OPEN: ConnectionState.OPEN,
        ConnectionEvent.REFUSED: ConnectionState.CLOSING,
        **_ENDS,
    },
    ConnectionState.OPEN: {**_SERVED, ConnectionEvent.BLOCK: ConnectionState.BLOCKED},
    ConnectionState.BLOCKED: {
        **_SERVED,
        ConnectionEvent.UPDATE_SECRET: ConnectionState.BLOCKED,
        ConnectionEvent.CHANNEL_FRAME: ConnectionState.BLOCKED,
        ConnectionEvent.UNBLOCK: ConnectionState.OPEN,
    },
    ConnectionState.CLOSING: {
        # Rule `stability` of connection.close: one that crosses it is answered as any other.
        ConnectionEvent.CLOSE: ConnectionState.CLOSED,
        ConnectionEvent.CLOSE_OK: ConnectionState.DRAINING,
        **_ENDS,
        ConnectionEvent.SHUT_DOWN: ConnectionState.CLOSING,
    },
    ConnectionState.CLOSED: {
        **dict.fromkeys(_ENDS, ConnectionState.CLOSED),
        ConnectionEvent.ABANDON: ConnectionState.ABANDONED,
    },
    ConnectionState.DRAINING: _ENDS,
    ConnectionState.ABANDONED: dict.fromkeys(_ENDS, ConnectionState.ABANDONED),
}
"""The next state of a connection, by state and event."""

CONNECTION_CLASS = 10
"""The class whose methods are for channel 0 only."""

CONNECTION_METHODS: dict[type[methods.Method], ConnectionEvent] = {
    methods.ConnectionStartOk: ConnectionEvent.START_OK,
    methods.ConnectionTuneOk: ConnectionEvent.TUNE_OK,
    methods.ConnectionOpen: ConnectionEvent.OPEN,
    methods.ConnectionUpdateSecret: ConnectionEvent.UPDATE_SECRET,
    methods.ConnectionClose: ConnectionEvent.CLOSE,
    methods.ConnectionCloseOk: ConnectionEvent.CLOSE_OK,
}
"""The methods that a client may ever send on channel 0; any other is 503."""

SERVED = tuple(
    state for state, moves in CONNECTION.items() if ConnectionEvent.CHANNEL_FRAME in moves
)
"""The states in which channels are open. A tuple, as members of an enum are slow to hash."""

FRAMED = (*SERVED, ConnectionState.CLOSING)
"""The states in which any frame may arrive."""

ENDED = (ConnectionState.CLOSED, ConnectionState.DRAINING, ConnectionState.ABANDONED)
"""The states in which input from the client is ignored."""

DUE: dict[ConnectionState, type[methods.Method]] = {
    state: method
    for state in (ConnectionState.STARTING, ConnectionState.TUNING, ConnectionState.OPENING)
    for method, event in CONNECTION_METHODS.items()
    if event in CONNECTION[state]
}
"""The one method that may come next, before the connection is open."""


class ChannelState(_Hashable):
    """The state of a channel. A channel number that is not in use is CLOSED."""

    CLOSED = "closed"
    OPEN = "open"
    FAILING = "failing"
    CLOSING = "closing"


class ChannelEvent(_Hashable):
    """The events of a channel: first those of the client, then those of the server."""

    OPEN = "channel.open"
    USE = "content, or any method but the others here"
    CLOSE = "channel.close"
    CLOSE_OK = "channel.close-ok"

    FAULT = "an error that has a soft reply code"
    KEPT = "what was promised before the error is durable, and confirmed"
    END = "the connection is over"


CHANNEL: dict[ChannelState, dict[ChannelEvent, ChannelState]] = {
    ChannelState.CLOSED: {
        ChannelEvent.OPEN: ChannelState.OPEN,
        # The connection's end came first, or a close-ok without a close.
        ChannelEvent.KEPT: ChannelState.CLOSED,
        ChannelEvent.END: ChannelState.CLOSED,
    },
    ChannelState.OPEN: {
        ChannelEvent.USE: ChannelState.OPEN,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
        ChannelEvent.FAULT: ChannelState.FAILING,
        ChannelEvent.END: ChannelState.CLOSED,
    },
    ChannelState.FAILING: {
        ChannelEvent.OPEN: ChannelState.FAILING,
        ChannelEvent.USE: ChannelState.FAILING,
        # The client is told of the error first, and then has that to answer.
        ChannelEvent.CLOSE: ChannelState.CLOSING,
        ChannelEvent.CLOSE_OK: ChannelState.CLOSED,
        ChannelEvent.FAULT: ChannelState.FAILING,
        ChannelEvent.KEPT: ChannelState.CLOSING,
        ChannelEvent.END: ChannelState.CLOSED,
    },
    ChannelState.CLOSING: {
        ChannelEvent.OPEN: ChannelState.CLOSING,
        ChannelEvent.USE: ChannelState.CLOSING,
        ChannelEvent.CLOSE: ChannelState.CLOSING,
        ChannelEvent.CLOSE_OK: ChannelState.CLOSED,
        ChannelEvent.FAULT: ChannelState.CLOSING,
        # The client's close came first.
        ChannelEvent.KEPT: ChannelState.CLOSING,
        ChannelEvent.END: ChannelState.CLOSED,
    },
}
"""The next state of a channel, by state and event."""

CHANNEL_METHODS: dict[type[methods.Method], ChannelEvent] = {
    methods.ChannelOpen: ChannelEvent.OPEN,
    methods.ChannelClose: ChannelEvent.CLOSE,
    methods.ChannelCloseOk: ChannelEvent.CLOSE_OK,
}
"""The methods that open or close a channel; any other uses it."""
