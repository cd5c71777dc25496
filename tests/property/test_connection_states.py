"""A connection and its channels in every state, and every event there, against their tables."""

import itertools
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.protocol.methods import Method
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from amqpstore_server.protocol.states import (
    CHANNEL,
    CHANNEL_METHODS,
    CONNECTION,
    CONNECTION_METHODS,
    DUE,
    ENDED,
    SERVED,
    ChannelEvent,
    ChannelState,
    ConnectionEvent,
    ConnectionState,
)
from tests.fuzz.simulated import USER, SimulatedClient, SimulatedServer
from tests.fuzz.test_connection import content

StateT = TypeVar("StateT")
StateT_co = TypeVar("StateT_co", covariant=True)
EventT = TypeVar("EventT")
EventT_contra = TypeVar("EventT_contra", contravariant=True)

START_OK = methods.ConnectionStartOk(
    client_properties={
        "capabilities": {"connection.blocked": True, "authentication_failure_close": True}
    },
    mechanism="PLAIN",
    response=b"\0guest\0guest",
    locale="en_US",
)
TUNE_OK = methods.ConnectionTuneOk(channel_max=0, frame_max=0, heartbeat=0)
CLOSE = methods.ConnectionClose(
    reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
)

BYTES: dict[ConnectionEvent, Callable[[int], bytes]] = {
    ConnectionEvent.HEADER: lambda _number: PROTOCOL_HEADER,
    ConnectionEvent.START_OK: lambda _number: sent(START_OK),
    ConnectionEvent.TUNE_OK: lambda _number: sent(TUNE_OK),
    ConnectionEvent.OPEN: lambda _number: sent(methods.ConnectionOpen(virtual_host=DEFAULT_VHOST)),
    ConnectionEvent.UPDATE_SECRET: lambda _number: sent(
        methods.ConnectionUpdateSecret(new_secret=b"", reason="")
    ),
    ConnectionEvent.CHANNEL_FRAME: lambda number: sent(methods.ChannelOpen(), number),
    ConnectionEvent.CLOSE: lambda _number: sent(CLOSE),
    ConnectionEvent.CLOSE_OK: lambda _number: sent(methods.ConnectionCloseOk()),
}
"""The bytes that the client sends, for each event of its own; each channel has a new number."""

ANSWERS = {
    ConnectionEvent.HEADER: "connection.start",
    ConnectionEvent.GRANTED: "connection.tune",
    ConnectionEvent.OPEN: "connection.open-ok",
    ConnectionEvent.UPDATE_SECRET: "connection.update-secret-ok",
    ConnectionEvent.CHANNEL_FRAME: "channel.open-ok",
    ConnectionEvent.CLOSE: "connection.close-ok",
    ConnectionEvent.BLOCK: "connection.blocked",
    ConnectionEvent.UNBLOCK: "connection.unblocked",
}
"""The method that answers each event where it is legal; connection.close, where it leads to
CLOSING.
"""

WAYS: dict[ConnectionState, list[ConnectionEvent]] = {
    ConnectionState.GREETING: [],
    ConnectionState.STARTING: [ConnectionEvent.HEADER],
    ConnectionState.AUTHENTICATING: [ConnectionEvent.HEADER, ConnectionEvent.START_OK],
}
WAYS[ConnectionState.TUNING] = [*WAYS[ConnectionState.AUTHENTICATING], ConnectionEvent.GRANTED]
WAYS[ConnectionState.OPENING] = [*WAYS[ConnectionState.TUNING], ConnectionEvent.TUNE_OK]
WAYS[ConnectionState.OPEN] = [*WAYS[ConnectionState.OPENING], ConnectionEvent.OPEN]
WAYS[ConnectionState.BLOCKED] = [*WAYS[ConnectionState.OPEN], ConnectionEvent.BLOCK]
WAYS[ConnectionState.CLOSING] = [*WAYS[ConnectionState.OPEN], ConnectionEvent.FAULT]
WAYS[ConnectionState.CLOSED] = [*WAYS[ConnectionState.OPEN], ConnectionEvent.CLOSE]
WAYS[ConnectionState.DRAINING] = [*WAYS[ConnectionState.OPEN], ConnectionEvent.END]
WAYS[ConnectionState.ABANDONED] = [*WAYS[ConnectionState.OPEN], ConnectionEvent.ABANDON]


def sent(method: Method, channel: int = 0) -> bytes:
    return method_frame(channel, method.encode())


def outcome(state: ConnectionState, event: ConnectionEvent) -> ConnectionState:
    """The table, and what the rules above it say of what it does not have."""
    if event in CONNECTION[state]:
        return CONNECTION[state][event]
    if event not in BYTES or state in ENDED:
        return state  # a call that comes too late, or bytes that are not read
    if event is ConnectionEvent.HEADER:
        return ConnectionState.DRAINING  # no frame starts so
    if state in (*SERVED, ConnectionState.CLOSING):
        return ConnectionState.CLOSING
    return ConnectionState.DRAINING


class Peer:
    """A client of a connection, and what should have come of all that happened to it."""

    def __init__(self, server: SimulatedServer) -> None:
        self.state = ConnectionState.GREETING
        self._client = SimulatedClient(server)
        self._client.has_foreign_header = True
        self._server = server
        self._numbers = itertools.count(1)
        self._waiting: list[ConnectionEvent] = []
        """Events that came while the login was checked."""

    def meet(self, event: ConnectionEvent) -> None:
        """Let an event happen, and compare what comes of it."""
        before = len(self._client.answers)
        expected = list(self._expect(event))
        self._do(event)
        self._client.take_output()
        assert [one.method.name for one in self._client.answers[before:]] == expected
        connection = self._client.connection
        assert connection.state is self.state
        assert connection.is_finished == (self.state in ENDED)
        has_session = bool(self._server.broker.access(USER, DEFAULT_VHOST).on_change)
        assert has_session == (self.state in SERVED)

    def _expect(self, event: ConnectionEvent) -> Iterator[str]:
        """Go on in the tables. Yields what is sent."""
        if event in BYTES and self.state is ConnectionState.AUTHENTICATING:
            self._waiting.append(event)
            return
        before, self.state = self.state, outcome(self.state, event)
        if self.state is ConnectionState.CLOSING is not before:
            yield "connection.close"
        elif event in CONNECTION[before] and event in ANSWERS:
            yield ANSWERS[event]
        if event is ConnectionEvent.REFUSED and before is not self.state:
            self._waiting = []
        if event is ConnectionEvent.GRANTED and before is not self.state:
            waiting, self._waiting = self._waiting, []
            for late in waiting:
                yield from self._expect(late)

    def _do(self, event: ConnectionEvent) -> None:
        connection, now = self._client.connection, self._server.now_s
        if event in BYTES:
            connection.receive(BYTES[event](next(self._numbers)), now)
        elif event is ConnectionEvent.REFUSED and connection.state is ConnectionState.OPENING:
            connection.receive(sent(methods.ConnectionOpen(virtual_host="missing")), now)
        else:
            calls: dict[ConnectionEvent, Callable[[], None]] = {
                ConnectionEvent.GRANTED: lambda: connection.logged_in(CheckedLogin(True), now),
                ConnectionEvent.REFUSED: lambda: connection.logged_in(CheckedLogin(False), now),
                ConnectionEvent.BLOCK: lambda: connection.block(),
                ConnectionEvent.UNBLOCK: connection.unblock,
                ConnectionEvent.FAULT: connection.break_off,
                ConnectionEvent.SHUT_DOWN: lambda: connection.shut_down(now),
                ConnectionEvent.END: connection.lost,
                ConnectionEvent.ABANDON: connection.abandon,
            }
            calls[event]()


class Walker(Protocol[StateT_co, EventT_contra]):
    """A client that compares all that happens to it with a table."""

    @property
    def state(self) -> StateT_co: ...

    def meet(self, event: EventT_contra) -> None: ...


def walk(
    make: Callable[[SimulatedServer], Walker[StateT, EventT]],
    way: list[EventT],
    state: StateT,
    events: list[EventT],
) -> None:
    """Go the way that leads to a state, and on from there."""
    with SimulatedServer() as server:
        client = make(server)
        for event in way:
            client.meet(event)
        assert client.state is state
        for event in events:
            client.meet(event)


@pytest.mark.parametrize("event", ConnectionEvent, ids=lambda event: event.name)
@pytest.mark.parametrize("state", ConnectionState, ids=lambda state: state.name)
def test_each_event_in_each_state_of_a_connection(
    state: ConnectionState, event: ConnectionEvent
) -> None:
    walk(Peer, WAYS[state], state, [event])


@given(
    state=st.sampled_from(ConnectionState),
    events=st.lists(st.sampled_from(ConnectionEvent), max_size=12),
)
def test_whatever_happens_a_connection_follows_its_table(
    state: ConnectionState, events: list[ConnectionEvent]
) -> None:
    walk(Peer, WAYS[state], state, events)


# Channels.

NUMBER = 1
CHANNEL_CLOSE = methods.ChannelClose(
    reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
)
CHANNEL_BYTES = {
    ChannelEvent.OPEN: sent(methods.ChannelOpen(), NUMBER),
    ChannelEvent.USE: sent(
        methods.BasicQos(prefetch_size=0, prefetch_count=0, global_=False), NUMBER
    ),
    ChannelEvent.CLOSE: sent(CHANNEL_CLOSE, NUMBER),
    ChannelEvent.CLOSE_OK: sent(methods.ChannelCloseOk(), NUMBER),
    # What is published before the error has to be durable before the channel is closed.
    ChannelEvent.FAULT: sent(methods.ConfirmSelect(no_wait=True), NUMBER)
    + content(
        NUMBER,
        methods.BasicPublish(exchange="", routing_key="q"),
        b"m",
        BasicProperties(delivery_mode=2),
        0,
        1,
    )
    + sent(methods.QueueDeclare(queue="missing", passive=True), NUMBER),
}
CHANNEL_WAYS = {
    ChannelState.CLOSED: [],
    ChannelState.OPEN: [ChannelEvent.OPEN],
    ChannelState.FAILING: [ChannelEvent.OPEN, ChannelEvent.FAULT],
    ChannelState.CLOSING: [ChannelEvent.OPEN, ChannelEvent.FAULT, ChannelEvent.KEPT],
}
CHANNEL_ANSWERS = {
    (ChannelState.CLOSED, ChannelEvent.OPEN): ["channel.open-ok"],
    (ChannelState.OPEN, ChannelEvent.USE): ["basic.qos-ok"],
    (ChannelState.OPEN, ChannelEvent.CLOSE): ["channel.close-ok"],
    (ChannelState.FAILING, ChannelEvent.CLOSE): ["channel.close", "channel.close-ok"],
    (ChannelState.FAILING, ChannelEvent.KEPT): ["basic.ack", "channel.close"],
    (ChannelState.CLOSING, ChannelEvent.CLOSE): ["channel.close-ok"],
}


class ChannelPeer:
    """A client of one channel of an open connection, and what should have come of it."""

    def __init__(self, server: SimulatedServer) -> None:
        self.state = ChannelState.CLOSED
        self.is_connected = True
        self._server = server
        self._client = SimulatedClient.opened(server)
        self._client.ask(2, methods.ChannelOpen(), methods.QueueDeclare(queue="q", durable=True))

    def meet(self, event: ChannelEvent) -> None:
        """Let an event happen, and compare what comes of it."""
        before = len(self._client.answers)
        expected = self._expect(event)
        if event in CHANNEL_BYTES:
            self._client.connection.receive(CHANNEL_BYTES[event], self._server.now_s)
        elif event is ChannelEvent.KEPT:
            self._server.settle()
        else:
            self._client.connection.lost()
        self._client.take_output()
        answers = self._client.answers[before:]
        assert [one.method.name for one in answers] == expected
        for answer in answers:
            if isinstance(answer.method, methods.ConnectionClose):
                assert answer.method.reply_code == 504
        if self.is_connected:
            session = self._client.connection.session
            assert session is not None
            channel = session.by_number.get(NUMBER)
            assert (channel.state if channel else ChannelState.CLOSED) is self.state
        assert (self._client.connection.state in SERVED) == self.is_connected

    def _expect(self, event: ChannelEvent) -> list[str]:
        """Go on in the table. Returns what is sent."""
        if not self.is_connected:
            return []
        before = self.state
        if event is ChannelEvent.KEPT and before is not ChannelState.FAILING:
            return []
        if event in CHANNEL[before]:
            self.state = CHANNEL[before][event]
            self.is_connected = event is not ChannelEvent.END
            return CHANNEL_ANSWERS.get((before, event), [])
        self.is_connected = False
        return ["connection.close"]


@pytest.mark.parametrize("event", ChannelEvent, ids=lambda event: event.name)
@pytest.mark.parametrize("state", ChannelState, ids=lambda state: state.name)
def test_each_event_in_each_state_of_a_channel(state: ChannelState, event: ChannelEvent) -> None:
    walk(ChannelPeer, CHANNEL_WAYS[state], state, [event])


@given(
    state=st.sampled_from(ChannelState),
    events=st.lists(st.sampled_from(ChannelEvent), max_size=12),
)
def test_whatever_happens_a_channel_follows_its_table(
    state: ChannelState, events: list[ChannelEvent]
) -> None:
    walk(ChannelPeer, CHANNEL_WAYS[state], state, events)


# The tables themselves.


def test_every_state_has_a_row_and_every_event_a_place() -> None:
    for states, events, table in (
        (ConnectionState, ConnectionEvent, CONNECTION),
        (ChannelState, ChannelEvent, CHANNEL),
    ):
        assert list(table) == list(states)
        assert {event for moves in table.values() for event in moves} == set(events)


def test_nothing_leads_back_from_the_end() -> None:
    for state in ENDED:
        assert set(CONNECTION[state].values()) <= set(ENDED)
    assert set(CONNECTION[ConnectionState.ABANDONED].values()) == {ConnectionState.ABANDONED}


def test_whoever_was_sent_a_close_may_answer_it() -> None:
    """Neither a stop of the server nor a close of the client that crosses it cuts it off."""
    closing = CONNECTION[ConnectionState.CLOSING]
    assert closing[ConnectionEvent.SHUT_DOWN] is ConnectionState.CLOSING
    assert CHANNEL[ChannelState.CLOSING][ChannelEvent.CLOSE] is ChannelState.CLOSING


def test_any_connection_can_be_ended_in_any_state() -> None:
    always = {ConnectionEvent.END, ConnectionEvent.ABANDON, ConnectionEvent.SHUT_DOWN}
    for moves in CONNECTION.values():
        assert always | {ConnectionEvent.FAULT} <= set(moves)


def test_each_method_is_one_event_and_each_event_of_a_method_one() -> None:
    for table in (CONNECTION_METHODS, CHANNEL_METHODS):
        assert {event.value for event in table.values()} == {method.name for method in table}
        assert len(set(table.values())) == len(table)


def test_one_method_is_due_in_each_state_of_the_handshake() -> None:
    for state, moves in CONNECTION.items():
        due = [method for method, event in CONNECTION_METHODS.items() if event in moves]
        is_handshake = state not in (*SERVED, *ENDED, ConnectionState.CLOSING)
        assert due == ([DUE[state]] if state in DUE else []) or not is_handshake
