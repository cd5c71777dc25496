"""The audit log says who did what by which door, without secrets, and its growth is bounded."""

import logging

import pytest

from amqpstore_server.broker.monitoring.audit import LOGGER, RefusalLimit
from amqpstore_server.logs import LogfmtFormatter
from amqpstore_server.protocol import methods
from tests.conformance.wire_client import publish
from tests.fuzz.simulated import SimulatedClient, SimulatedServer


def refusal(
    at_s: float, peer: str = "10.0.0.1:5", level: int = logging.WARNING
) -> logging.LogRecord:
    record = logging.makeLogRecord({"levelno": level, "peer": peer})
    record.created = at_s
    return record


def test_a_flood_of_wrong_logins_is_counted_and_not_written() -> None:
    limit = RefusalLimit()
    passed = sum(limit.filter(refusal(100 + number / 1000)) for number in range(5000))
    assert passed == 20
    # Others are still heard.
    other = refusal(105.5, "10.0.0.2:6")
    assert limit.filter(other)
    assert vars(other)["suppressed"] == 4980
    # And what is no refusal, whatever happens.
    assert all(limit.filter(refusal(105.5, level=logging.INFO)) for _ in range(100))
    later = refusal(200)
    assert limit.filter(later)
    assert "suppressed" not in vars(later)


def test_many_hosts_together_cannot_fill_the_log_either() -> None:
    limit = RefusalLimit()
    assert sum(limit.filter(refusal(7, f"10.0.{one}.1:1")) for one in range(250)) == 200


def test_a_clock_that_is_set_back_does_not_silence_the_log() -> None:
    limit = RefusalLimit()
    for _ in range(30):
        limit.filter(refusal(1_000_000))
    assert limit.filter(refusal(1000))


@pytest.fixture(autouse=True)
def _quiet_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out refusals of other tests, which would count."""
    monkeypatch.setattr(logging.getLogger(LOGGER), "filters", [RefusalLimit()])


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    form = LogfmtFormatter(is_timed=False)
    found = []
    for record in caplog.records:
        if record.name == LOGGER:
            del record.message  # of the handler that caught it
            # Its number depends on how many connections there were in this process.
            vars(record).pop("connection", None)
            found.append(form.format(record))
    return found


def test_a_purge_says_how_many_messages_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        for queue in ("kept", "passing"):
            client.ask(1, methods.QueueDeclare(queue=queue, durable=queue == "kept"))
            for _ in range(3):
                client.send(publish(1, queue, b"x"))
            for _ in range(2):  # the second time nothing is there
                client.ask(1, methods.QueuePurge(queue=queue))
    by = "by=guest door=AMQP peer=simulated user=guest vhost=/"
    lines = [one for one in events(caplog) if "purged" in one]
    assert lines == [f'level=info event="queue purged" {by} queue=kept count=3']


def test_who_comes_in_and_what_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        ask = client.ask
        for _ in range(2):  # the second time nothing changes
            ask(1, methods.QueueDeclare(queue="q\x1b[2J", durable=True))
            ask(1, methods.ExchangeDeclare(exchange="e", type="topic", durable=True))
            ask(1, methods.QueueBind(queue="q\x1b[2J", exchange="e", routing_key="k"))
            ask(1, methods.ExchangeBind(destination="amq.fanout", source="e", routing_key="k"))
            ask(1, methods.QueueDeclare(queue="passing", exclusive=True))
        for _ in range(2):
            ask(1, methods.ExchangeUnbind(destination="amq.fanout", source="e", routing_key="k"))
            ask(1, methods.QueueUnbind(queue="q\x1b[2J", exchange="e", routing_key="k"))
            ask(1, methods.QueueDelete(queue="q\x1b[2J"))
            ask(1, methods.ExchangeDelete(exchange="e"))
        server.broker.define_permissions("guest", "/", {"configure": "", "write": "", "read": ""})
        ask(1, methods.QueueDeclare(queue="other", durable=True))
    by = "by=guest door=AMQP peer=simulated user=guest vhost=/"
    assert events(caplog) == [
        "level=info event=login peer=simulated user=guest mechanism=PLAIN",
        'level=info event="connection opened" peer=simulated user=guest vhost=/',
        f'level=info event="queue declared" {by} queue=q\\x1b[2J',
        f'level=info event="exchange declared" {by} exchange=e type=topic',
        f"level=info event=bound {by} exchange=e to=q\\x1b[2J routing_key=k",
        f"level=info event=bound {by} exchange=e to=amq.fanout routing_key=k",
        f"level=info event=unbound {by} exchange=e to=amq.fanout routing_key=k",
        f"level=info event=unbound {by} exchange=e to=q\\x1b[2J routing_key=k",
        f'level=info event="queue deleted" {by} queue=q\\x1b[2J',
        f'level=info event="exchange deleted" {by} exchange=e',
        (
            'level=warning event="access refused" peer=simulated user=guest vhost=/ channel=1 '
            "reason=\"ACCESS_REFUSED - configure access to queue 'other' in vhost '/' refused for "
            "user 'guest'\""
        ),
    ]


def test_who_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with SimulatedServer() as server:
        client = SimulatedClient(server)
        client.send(b"AMQP\0\0\x09\x01")
        wrong = methods.ConnectionStartOk(
            client_properties={}, mechanism="PLAIN", response=b"\0bert\0hunter2", locale="en_US"
        )
        client.ask(0, wrong)
        SimulatedClient.opened(server, "nowhere")
    assert [one for one in events(caplog) if "refused" in one] == [
        'level=warning event="login refused" peer=simulated user=bert mechanism=PLAIN',
        (
            'level=warning event="vhost refused" peer=simulated user=guest vhost=nowhere '
            "reason=\"NOT_ALLOWED - vhost 'nowhere' not found\""
        ),
    ]
    assert "hunter2" not in caplog.text
