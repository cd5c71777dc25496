"""The state machine of a connection, as the server sees it (AMQP 0-9-1 section 2.2.4).

    client                 server                       state behind it
    protocol header  -->
                     <--   connection.start             STARTING
    start-ok         -->                                AUTHENTICATING, until the login is checked
                     <--   connection.tune              TUNING
    tune-ok          -->                                OPENING
    connection.open  -->
                     <--   connection.open-ok           OPEN
    close            -->
                     <--   connection.close-ok          CLOSED
                     <--   connection.close             CLOSING: all is ignored but close, close-ok
    close-ok         -->                                CLOSED

What the table does not have is not legal: before OPEN it ends the connection without a word, as
section 2.2.4 asks; on an open one it is answered with 503.
"""

from __future__ import annotations

import enum

from amqpstore_server.protocol import methods


class State(enum.Enum):
    """Where in its life a connection is."""

    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


TRANSITIONS: dict[tuple[State, type[methods.Method]], State] = {
    (State.STARTING, methods.ConnectionStartOk): State.AUTHENTICATING,
    (State.TUNING, methods.ConnectionTuneOk): State.OPENING,
    (State.OPENING, methods.ConnectionOpen): State.OPEN,
    (State.OPEN, methods.ConnectionUpdateSecret): State.OPEN,
    (State.OPEN, methods.ConnectionClose): State.CLOSED,
    (State.CLOSING, methods.ConnectionClose): State.CLOSED,
    (State.CLOSING, methods.ConnectionCloseOk): State.CLOSED,
}
"""What a method on channel 0 leads to."""

DUE: dict[State | None, type[methods.Method]] = {
    State.STARTING: methods.ConnectionStartOk,
    State.TUNING: methods.ConnectionTuneOk,
    State.OPENING: methods.ConnectionOpen,
}
"""The one method that may come next, before the connection is open."""
