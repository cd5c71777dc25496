"""Each method on a real broker, with the permissions that it needs, and without each of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.frames import header_frame, method_frame
from amqpstore_server.protocol.methods import Method, decode_method
from amqpstore_tools.administration.client import asked
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import WireClient
from tests.content_header import encode_content_header
from tests.unit.broker.test_permissions import MATRIX, patterns_of

Needed = list[tuple[str, str]]


class Tried:
    """A broker, and a user whose permissions are changed under its open connection."""

    def __init__(self, broker: BrokerProcess, client: WireClient) -> None:
        self._broker = broker
        self._client = client

    def permit(self, patterns: dict[str, str]) -> None:
        permission = {"user": "guest", "vhost": "/", **patterns}
        request = {"do": "permissions set", "permission": permission}
        asked(self._broker.data_directory, request)

    def prepare(self) -> None:
        """Have there what the methods name, and nothing that they create."""
        self.permit(ALL)
        for name in ("e", "e2"):
            assert self.reply(methods.ExchangeDeclare(exchange=name, type="fanout")) == 0
        assert self.reply(methods.QueueDeclare(queue="q")) == 0
        assert self.reply(methods.QueueDelete(queue="new")) == 0
        assert self.reply(methods.ExchangeDelete(exchange="new")) == 0

    def reply(self, method: Method, headers: Any = None) -> int:
        """Send a method on a new channel; the reply code with which that is closed, or 0."""
        client = self._client
        client.open_channel(1)
        parts = [method_frame(1, method.encode())]
        if isinstance(method, methods.BasicPublish):
            properties = encode_properties(BasicProperties(headers=headers))
            parts.append(header_frame(1, encode_content_header(60, 0, properties)))
        # Its answer shows that the method before it was not refused.
        client.send(
            *parts, method_frame(1, methods.BasicQos(prefetch_size=0, prefetch_count=0).encode())
        )
        while True:
            answer = decode_method(client.next_frame().payload)
            if isinstance(answer, methods.ChannelClose):
                client.send(method_frame(1, methods.ChannelCloseOk().encode()))
                return answer.reply_code
            if isinstance(answer, methods.BasicQosOk):
                break
        close = methods.ChannelClose(
            reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
        )
        client.send(method_frame(1, close.encode()))
        while not isinstance(decode_method(client.next_frame().payload), methods.ChannelCloseOk):
            pass
        return 0


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    directory: Path = tmp_path_factory.mktemp("matrix")
    with BrokerProcess(str(directory / "data"), str(directory / "log")) as broker:
        broker.start()
        with WireClient.connected(broker.url) as client:
            yield Tried(broker, client)


@pytest.mark.parametrize("what", MATRIX)
def test_a_method_is_refused_without_any_one_of_its_permissions(tried: Tried, what: str) -> None:
    method, needed = MATRIX[what]
    tried.prepare()
    tried.permit(patterns_of(needed))
    assert tried.reply(method) == 0
    for left_out in needed:
        tried.prepare()
        tried.permit(patterns_of([one for one in needed if one != left_out]))
        assert tried.reply(method) == 403, left_out


@pytest.mark.parametrize("permission", ALL)
def test_a_passive_declare_needs_any_of_the_three(tried: Tried, permission: str) -> None:
    """CVE-2026-57221."""
    tried.prepare()
    nothing = dict.fromkeys(ALL, "")
    asked_for: list[Method] = [
        methods.QueueDeclare(queue="q", passive=True),
        methods.ExchangeDeclare(exchange="e", type="fanout", passive=True),
    ]
    for method in asked_for:
        tried.permit({**nothing, permission: "^(q|e)$"})
        assert tried.reply(method) == 0
        tried.permit({**nothing, permission: "^other$"})
        assert tried.reply(method) == 403
    # Whether something exists makes no difference.
    assert tried.reply(methods.QueueDeclare(queue="missing", passive=True)) == 403


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_the_keys_in_the_headers_of_a_publish_count(tried: Tried, header: str) -> None:
    tried.prepare()
    names = {"user": "guest", "vhost": "/", "exchange": "amq.topic"}
    topic = {**names, "write": "^a", "read": "^r"}
    data = tried._broker.data_directory
    asked(data, {"do": "permissions set-topic", "permission": topic})
    publish = methods.BasicPublish(exchange="amq.topic", routing_key="a")
    assert tried.reply(publish, {header: ["a.b"]}) == 0
    assert tried.reply(publish, {header: ["a.b", "secret"]}) == 403
    assert tried.reply(methods.BasicPublish(exchange="amq.topic", routing_key="s")) == 403
    bind = methods.QueueBind(queue="q", exchange="amq.topic", routing_key="a")
    assert tried.reply(bind) == 403
    asked(data, {"do": "permissions clear-topic", "user": "guest", "vhost": "/"})
    assert tried.reply(bind) == 0


def test_the_exchanges_of_a_policy_need_no_permission_of_whoever_declares(tried: Tried) -> None:
    """The operator who sets the policy decides, as in RabbitMQ."""
    tried.prepare()
    data = tried._broker.data_directory
    definition = {"dead-letter-exchange": "dlx", "alternate-exchange": "alt"}
    policy = {"vhost": "/", "name": "p", "pattern": "^new$", "definition": definition}
    asked(data, {"do": "policies set", "policy": policy})
    tried.permit({"configure": "^new$", "write": "", "read": ""})
    assert tried.reply(methods.QueueDeclare(queue="new")) == 0
    assert tried.reply(methods.ExchangeDeclare(exchange="new", type="fanout")) == 0
    asked(data, {"do": "policies clear", "vhost": "/", "name": "p"})


def test_replies_go_to_an_address_that_needs_no_permission_and_are_publishes(tried: Tried) -> None:
    """CVE-2026-57215."""
    tried.prepare()
    tried.permit(dict.fromkeys(ALL, ""))
    replies = "amq.rabbitmq.reply-to"
    consume = methods.BasicConsume(queue=replies, consumer_tag="c", no_ack=True)
    assert tried.reply(consume) == 0
    reply = methods.BasicPublish(exchange="", routing_key=f"{replies}.guessed")
    assert tried.reply(reply) == 403
    assert tried.reply(methods.BasicGet(queue=f"{replies}.guessed", no_ack=True)) == 403
    assert tried.reply(methods.QueuePurge(queue=f"{replies}.guessed")) == 403
