"""The lives of a connection and of a channel, as the server sees them: states, events, two tables.

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
                     <--   connection.close-ok          DRAINING
                     <--   connection.close             CLOSING: all is ignored but close, close-ok
    close-ok         -->                                DRAINING

House rules:

1. A state changes by an event, along its table, and in no other way; an event that the table does
   not have in a state is not legal there. There are no half-states: what a state needs exists while
   it lasts, and no field says a second time where in its life a connection or a channel is.
2. What the client sends and the table does not have ends the connection: without a word before
   OPEN, as section 2.2.4 asks, and with 503 or 504 from then on. Behind the end, in CLOSING,
   DRAINING and ABANDONED, and on a channel that is FAILING or CLOSING, it is dropped.
3. What the server itself meets, from FAULT on, has to be in the table wherever it can happen: a
   KeyError there is an error of ours, and costs the connection 541.
4. Each end is reached once. A connection sends one connection.close at most, for what takes it to
   CLOSING or for a login that is REFUSED, and gives back all that it holds as it leaves OPEN and
   BLOCKED. DRAINING and ABANDONED are left for nothing but ABANDONED: in DRAINING
   the outbox is still sent, and what comes is read and dropped; in ABANDONED not even that.
5. A channel that failed first keeps its promises: FAILING lasts until what it published is durable
   and confirmed, CLOSING from channel.close to the client's close-ok. Where the client's own close
   crosses that channel.close it is answered, and the channel waits for its close-ok all the same.
"""

from __future__ import annotations

import enum

from amqpstore_server.protocol import methods


class ConnectionState(enum.Enum):
    """Where in its life a connection is."""

    GREETING = "no protocol header"
    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "open"
    BLOCKED = "blocked"
    CLOSING = "closing"
    DRAINING = "draining"
    ABANDONED = "abandoned"


class ConnectionEvent(enum.Enum):
    """What may happen to a connection: first what the client does, then what the server meets."""

    HEADER = "the protocol header of a version that is spoken here"
    START_OK = "connection.start-ok"
    TUNE_OK = "connection.tune-ok"
    OPEN = "connection.open"
    UPDATE_SECRET = "connection.update-secret"  # noqa: S105
    CHANNEL_FRAME = "something on another channel than 0"
    CLOSE = "connection.close"
    CLOSE_OK = "connection.close-ok"

    GRANTED = "the login is right"
    REFUSED = "the login is wrong, or the virtual host is not for the user"
    BLOCK = "the disk is low: publishers have to wait"
    UNBLOCK = "the disk has room again"
    FAULT = "an error that has a reply code"
    SHUT_DOWN = "the server stops"
    END = "there is nobody to talk to, or nothing to say: not AMQP, out of time, or gone"
    ABANDON = "the client does not answer"


_ENDS = {
    ConnectionEvent.FAULT: ConnectionState.DRAINING,
    ConnectionEvent.SHUT_DOWN: ConnectionState.DRAINING,
    ConnectionEvent.END: ConnectionState.DRAINING,
    ConnectionEvent.ABANDON: ConnectionState.ABANDONED,
}
"""How it ends where no reply is due."""

_SERVED = {
    ConnectionEvent.UPDATE_SECRET: ConnectionState.OPEN,
    ConnectionEvent.CHANNEL_FRAME: ConnectionState.OPEN,
    ConnectionEvent.CLOSE: ConnectionState.DRAINING,
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
        ConnectionEvent.REFUSED: ConnectionState.DRAINING,
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
        ConnectionEvent.CLOSE: ConnectionState.DRAINING,
        ConnectionEvent.CLOSE_OK: ConnectionState.DRAINING,
        **_ENDS,
        ConnectionEvent.SHUT_DOWN: ConnectionState.CLOSING,
    },
    ConnectionState.DRAINING: _ENDS,
    ConnectionState.ABANDONED: dict.fromkeys(_ENDS, ConnectionState.ABANDONED),
}
"""What an event leads to in each state of a connection."""

CONNECTION_CLASS = 10
"""The class whose methods are for channel 0 alone."""

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
"""The states in which any frame may come."""

ENDED = (ConnectionState.DRAINING, ConnectionState.ABANDONED)
"""The states in which nothing that the client sends is looked at any more."""

DUE: dict[ConnectionState, type[methods.Method]] = {
    state: method
    for state in (ConnectionState.STARTING, ConnectionState.TUNING, ConnectionState.OPENING)
    for method, event in CONNECTION_METHODS.items()
    if event in CONNECTION[state]
}
"""The one method that may come next, before the connection is open."""


class ChannelState(enum.Enum):
    """Where in its life a channel is. A number that no channel has is CLOSED."""

    CLOSED = "closed"
    OPEN = "open"
    FAILING = "failing"
    CLOSING = "closing"


class ChannelEvent(enum.Enum):
    """What may happen to a channel: first what the client does, then what the server meets."""

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
        # The client's close, or the connection's end, came first.
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
        ChannelEvent.CLOSE: ChannelState.CLOSED,
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
        ChannelEvent.END: ChannelState.CLOSED,
    },
}
"""What an event leads to in each state of a channel."""

CHANNEL_METHODS: dict[type[methods.Method], ChannelEvent] = {
    methods.ChannelOpen: ChannelEvent.OPEN,
    methods.ChannelClose: ChannelEvent.CLOSE,
    methods.ChannelCloseOk: ChannelEvent.CLOSE_OK,
}
"""The methods that open or end a channel; any other uses it."""
