"""The lessons of other brokers' security advisories, one test each: what went wrong there must not
go wrong here. Those on permissions, users and certificates are with their rooms.
"""

import ast
import gc
import gzip
import logging
import struct
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpstore_server.broker.rights import permissions
from amqpstore_tools.testing.broker import MemoryBroker
from tests.attack.attacker import MIB, forget_peak, peak_bytes, push
from tests.attack.test_crowds import cpu_s
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BODY,
    CHANNEL_CLOSE_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    QUEUE_DELETE,
    WireClient,
    basic_cancel,
    basic_consume,
    body,
    connection_open,
    field,
    frame,
    header,
    long_string,
    method,
    publish,
    publish_method,
    queue_bind,
    queue_declare,
    short_string,
    table,
    tune_ok,
)
from tests.interop.pika_client import channel_closed_with, connect

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = str(tmp_path_factory.mktemp("broker") / "store")
    with BrokerProcess(directory, f"{directory}.log") as process:
        process.start()
        with WireClient.connected(process.url):
            pass  # the check of a password takes 64 MiB for a moment
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr


@pytest.fixture
def target(shared: BrokerProcess) -> Generator[BrokerProcess]:
    """A broker, with another client that is served throughout."""
    with WireClient.connected(shared.url, channels=1) as other:
        yield shared
        other.expect_alive()


def test_what_is_assembled_is_counted_against_what_was_declared(target: BrokerProcess) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=1) as client:
        client.send(publish_method(1, "nowhere"), header(1, 10))
        client.send_to_closing_peer(*[body(1, b"12345")] * 3)
        client.expect_connection_close(505)
    with WireClient.greeted(target.url) as stranger:
        assert push(stranger, [frame(BODY, 1, bytes(8000))] * 10_000) < 16 * MIB
    assert peak_bytes(target) - before < 16 * MIB


def test_nothing_that_a_client_sends_is_decompressed(target: BrokerProcess) -> None:
    """A body that claims to be compressed is bytes like any other, so it cannot be a bomb."""
    bomb = gzip.compress(bytes(64 * MIB))
    before = forget_peak(target)
    with connect(target.url) as connection:
        channel = connection.channel()
        channel.queue_declare("bomb", exclusive=True)
        properties = pika.BasicProperties(content_encoding="gzip")
        channel.basic_publish("", "bomb", bomb, properties)
        _, found, content = channel.basic_get("bomb", auto_ack=True)
        assert found is not None
        assert (found.content_encoding, content) == ("gzip", bomb)
    assert peak_bytes(target) - before < 8 * MIB


EDGES = {
    "an array that runs past its table": b"\x01kA\xff\xff\xff\xff",
    "a name that runs past its table": b"\xff" + b"k" * 10,
    "a text of negative length": b"\x01kS\xff\xff\xff\xf0",
    "a table inside that has no end": b"\x01kF\x7f\xff\xff\xff",
    "an unknown type": b"\x01k\x00",
}
TOO_MUCH = {
    "many entries without width": b"\x01kA" + struct.pack(">I", 20_000) + b"V" * 20_000,
    "tables nested without end": b"\x01kF\x00\x00\x00\x09" * 5000,
}


@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_value_ends_its_connection_and_nothing_else(
    target: BrokerProcess, edge: str
) -> None:
    arguments = b"\0\0" + short_string("q") + b"\0" + table(EDGES[edge])
    with WireClient.connected(target.url, channels=1) as client:
        client.send(method(1, (50, 10), arguments))
        client.expect_connection_close(502)


@pytest.mark.parametrize("edge", TOO_MUCH)
def test_what_is_too_much_ends_its_channel_and_nothing_else(
    target: BrokerProcess, edge: str
) -> None:
    arguments = b"\0\0" + short_string("q") + b"\0" + table(TOO_MUCH[edge])
    with WireClient.connected(target.url, channels=1) as client:
        client.send(method(1, (50, 10), arguments))
        client.expect_channel_close(1, 406)
        client.expect_alive()


@pytest.mark.parametrize("size", [0, 1, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("kind", [1, 2, 3, 8, 9, 255])
def test_a_frame_of_any_size_and_kind_ends_its_connection_at_worst(
    target: BrokerProcess, kind: int, size: int
) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=1) as client:
        client.send_to_closing_peer(struct.pack(">BHI", kind, 1, size) + bytes(size & 3) + b"\xce")
    assert peak_bytes(target) - before < 8 * MIB


def test_routing_takes_little_work_whatever_is_bound(target: BrokerProcess) -> None:
    """Consecutive wildcards do not multiply, and a weight cannot ask for any number of buckets."""
    with connect(target.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", exclusive=True)
        for count in range(1, 40):
            channel.queue_bind("q", "amq.topic", ".".join(["#", "*"] * count + ["a", "#"]))
        began = cpu_s(target)
        for number in range(50):
            channel.basic_publish("amq.topic", ".".join("a" * 120) + f".{number}", b"")
        channel.queue_declare("q", passive=True)
        assert cpu_s(target) - began < 1.0
        channel.exchange_declare("hash", "x-consistent-hash", auto_delete=True)
        with channel_closed_with(406):
            channel.queue_bind("q", "hash", "999999999999")


NAMES_A_ROUND = 300


def make_up_names(url: str, round_number: int) -> None:
    """Use new names wherever a client may choose a name, and disconnect."""
    names = [f"made-up.{round_number}.{number}" for number in range(NAMES_A_ROUND)]
    with WireClient.connected(url, channels=1) as client:
        for name in names:
            text = short_string(name)
            headers = table(field(name, b"S", long_string(name.encode())))
            reply_address = f"amq.rabbitmq.reply-to.{name}"
            # Headers, reply-to, message-id, type and app-id.
            properties = (
                struct.pack(">H", 0x22A8) + headers + short_string(reply_address) + text * 3
            )
            client.send(publish(1, name, b"", properties), publish(1, reply_address, b""))
            client.send(
                method(1, EXCHANGE_DECLARE, b"\0\0" + text + short_string("topic") + bytes(5)),
                queue_declare(1, name, bits=0b100),
                queue_bind(1, name, name, f"{name}.*.#"),
                basic_consume(1, name, name),
                publish_method(1, f"{name}.x", name) + header(1, 0, properties),
                basic_cancel(1, name),
                method(1, QUEUE_DELETE, b"\0\0" + text + b"\0"),
                method(1, EXCHANGE_DELETE, b"\0\0" + text + b"\0"),
            )
            while client.next_frame().method != EXCHANGE_DELETE_OK:
                pass
        for name in names:
            client.send(queue_declare(1, name, bits=0b1))
            client.expect_channel_close(1, 404)
            client.send(method(1, CHANNEL_CLOSE_OK))
            client.open_channel(1)
        client.finish()
    for name in names[:: NAMES_A_ROUND // 10]:
        with WireClient.tuning(url, capabilities=(name,)) as client:
            client.send(tune_ok(10, 131_072, 0), connection_open(name))
            client.expect_connection_close(530)


def test_names_that_clients_make_up_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kind of name stays in memory. Caches, whose sizes have limits of their own, are emptied
    here or made small. Everything else is counted in blocks of memory, of which a name that is kept
    takes several.
    """
    monkeypatch.setattr(permissions, "_REMEMBERED", 10)
    with MemoryBroker() as broker:

        def blocks() -> int:
            broker._app._free_caches()
            gc.collect()
            return sys.getallocatedblocks()

        logging.disable()  # pytest keeps all of it
        try:
            counts = []
            for round_number in range(3):
                make_up_names(broker.url, round_number)
                counts.append(broker._look(blocks))
        finally:
            logging.disable(logging.NOTSET)
        # trio keeps deadlines of connections that are gone, for a while.
        assert counts[2] - counts[1] < NAMES_A_ROUND // 2, counts


def test_nothing_is_deserialised_into_code() -> None:
    """No module of the engine or the server can load more than plain values."""
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle"}
    calls = {"eval", "exec", "compile"}
    for path in [*(ROOT / "amqpstore").rglob("*.py"), *(ROOT / "server").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names = {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, path
                continue
            else:
                continue
            assert not names & forbidden, path


def test_a_header_of_another_user_is_refused(target: BrokerProcess) -> None:
    """A publisher cannot make up the user ID, which consumers may trust."""
    with connect(target.url) as connection:
        channel = connection.channel()
        channel.queue_declare("trust", exclusive=True)
        with channel_closed_with(406):
            channel.basic_publish("", "trust", b"", pika.BasicProperties(user_id="somebody"))
            channel.queue_declare("trust", passive=True)
        channel = connection.channel()
        channel.basic_publish("", "trust", b"", pika.BasicProperties(user_id="guest"))
        assert channel.queue_declare("trust", passive=True).method.message_count == 1


def test_headers_of_the_broker_that_a_client_makes_up_do_no_harm(target: BrokerProcess) -> None:
    """x-death and its relatives, of wrong types and impossible numbers."""
    wrong: list[Any] = [
        [],
        "text",
        [1, 2],
        [{"queue": 5, "count": "x"}],
        [{"queue": "made-up", "reason": "expired", "count": 2**63 - 1, "exchange": ""}] * 30,
    ]
    with connect(target.url) as connection:
        channel = connection.channel()
        channel.queue_declare("after", exclusive=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "after"}
        channel.queue_declare("made-up", exclusive=True, arguments=dead)
        for value in wrong:
            headers = {"x-death": value, "x-delivery-count": -1, "x-death-landmark": value}
            channel.basic_publish("", "made-up", b"", pika.BasicProperties(headers=headers))
            taken, _, _ = channel.basic_get("made-up")
            assert taken is not None
            channel.basic_reject(taken.delivery_tag or 0, requeue=False)
        assert channel.queue_declare("made-up", passive=True).method.message_count == 0
        assert channel.queue_declare("after", passive=True).method.message_count == len(wrong)


def test_a_hash_of_any_header_is_a_route(target: BrokerProcess) -> None:
    """A header of any type can be hashed, an empty array too, and also for dead letters."""
    odd: list[Any] = [[], {}, None, b"", "", True, 0, [[]], {"a": []}]
    with connect(target.url) as connection:
        channel = connection.channel()
        hashed = {"hash-header": "h"}
        channel.exchange_declare("by-header", "x-consistent-hash", arguments=hashed)
        channel.queue_declare("hashed", exclusive=True)
        channel.queue_bind("hashed", "by-header", "10")
        dead = {"x-dead-letter-exchange": "by-header"}
        channel.queue_declare("to-hash", exclusive=True, arguments=dead)
        for value in odd:
            properties = pika.BasicProperties(headers={"h": value})
            channel.basic_publish("by-header", "k", b"", properties)
            channel.basic_publish("", "to-hash", b"", properties)
            taken, _, _ = channel.basic_get("to-hash")
            assert taken is not None
            channel.basic_reject(taken.delivery_tag or 0, requeue=False)
        count = channel.queue_declare("hashed", passive=True).method.message_count
        assert count == 2 * len(odd)
        channel.exchange_delete("by-header")


NAMES = ["../../outside", "/etc/outside", "a/../../b", "%s%n%d", "{0.__class__}", "${jndi:x}", "~"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_never_a_path_or_a_format(target: BrokerProcess, name: str) -> None:
    """Durable, and with a backlog on disk: nothing beside the store's own files appears."""
    root = Path(target.data_directory)
    before = {path.name for path in root.parent.rglob("*")}
    with connect(target.url) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "topic", durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name, name)
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, message_id=name, app_id=name)
        channel.basic_publish(name, name, bytes(MIB), properties)
        got: list[str] = []
        tag = channel.basic_consume(name, lambda *_: got.append(name), consumer_tag=name)
        connection.process_data_events(0)
        channel.basic_cancel(tag)
        with channel_closed_with(404):
            channel.queue_declare(f"{name} is not there", passive=True)
        channel = connection.channel()
        assert (channel.queue_delete(name).method.message_count or 0) + len(got) >= 1
        channel.exchange_delete(name)
    appeared = {path.name for path in root.parent.rglob("*")} - before
    assert not [file for file in appeared if "outside" in file or name in file], appeared
