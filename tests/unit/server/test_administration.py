"""Changes that operators make are stored, and reach the clients that are connected."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from amqpstore_server.administration import requests
from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.definitions import (
    Definitions,
    DefinitionsError,
    Permission,
    PolicyDefinition,
    TopicPermission,
    User,
    VirtualHostDefinition,
)
from amqpstore_server.administration.operations import STOPPED, Administration
from amqpstore_server.administration.requests import SetUser, carried_out
from amqpstore_server.administration.work import Work, done
from amqpstore_server.broker.errors import AccessRefusedError, NotAllowedError
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.logins.users import Users
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.bounds import MAX_BODY_ENTRIES
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.operations import Operation
from tests.fuzz.simulated import USER, SimulatedClient, SimulatedServer

BY = By("test", "test")


class Administered(SimulatedServer):
    """A broker with two virtual hosts and an operator."""

    def __init__(self) -> None:
        super().__init__(("/", "shop"))
        self.users = Users(self.store)
        self.users.define(USER, self.users.imported(b"", "rabbit_password_hashing_sha256"))
        self.users.define("other", self.users.imported(b"", "rabbit_password_hashing_sha256"))
        self.administration = Administration(
            self.broker,
            self.users,
            lambda: [client.connection for client in self.clients],
            lambda: self.now_s,
        )

    def do(self, work: Work[None]) -> None:
        done(work)
        self.settle()

    def client(self, vhost: str = "shop") -> SimulatedClient:
        return SimulatedClient.opened(self, vhost, channels=1)


@pytest.fixture
def server() -> Iterator[Administered]:
    with Administered() as administered:
        yield administered


def closed_with(client: SimulatedClient) -> tuple[int, str] | None:
    for answer in client.answers:
        if isinstance(answer.method, methods.ConnectionClose):
            return answer.method.reply_code, answer.method.reply_text
    return None


def test_a_deleted_user_loses_its_connections_permissions_and_login(server: Administered) -> None:
    clients = [server.client(), server.client("/")]
    early = SimulatedClient(server)  # a client that has not said which user it is
    server.do(server.administration.delete_user(BY, USER))
    for client in clients:
        assert closed_with(client) == (320, "CONNECTION_FORCED - user 'guest' was deleted")
    assert not early.connection.is_finished
    assert server.administration.permissions.all() == []
    assert not server.users.check(USER, b"guest")
    server.clients.clear()
    server.restart()
    assert not list(server.broker.granted())
    assert Users(server.store).names == ["other"]


def test_a_user_that_is_deleted_between_login_and_open_does_not_get_in(
    server: Administered,
) -> None:
    client = SimulatedClient(server)
    client.send(b"AMQP\0\0\x09\x01")
    client.ask(0, client.start_ok())
    server.do(server.administration.delete_user(BY, USER))
    assert client.connection.is_finished


def asked(server: Administered, **request: object) -> Any:
    content = msgspec.json.encode(request)
    answer = done(carried_out(content, server.administration, BY))
    server.settle()
    return answer


MANY = dict.fromkeys(map(str, range(MAX_BODY_ENTRIES)), 1)


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "users list", "unknown": MANY},
        {"do": "users set-limits", "name": USER, "limits": MANY},
        {"do": "users set", "name": USER, "tags": ["administrator"] * MAX_BODY_ENTRIES},
        {"do": "policies set", "policy": {"definition": MANY}},
        {"do": "exchanges explain", "vhost": "/", "properties": {"headers": MANY}},
        {"do": "messages delete", "which": {"positions": [1] * MAX_BODY_ENTRIES}},
        {"do": "messages browse", "page": {"filter": {"headers": MANY}}},
    ],
    ids=lambda request: request["do"],
)
def test_a_request_holds_as_much_as_one_by_http(
    server: Administered, request_: dict[str, object]
) -> None:
    with pytest.raises(AdministrationError, match=f"request has more than {MAX_BODY_ENTRIES} ent"):
        asked(server, **request_)


def test_only_definitions_hold_more(server: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {"users": [], "unknown": MANY}
    answer = asked(server, do="definitions import", content=many)
    assert answer["left_out"] == []
    assert any("unknown" in note for note in answer["notes"])
    monkeypatch.setattr(requests, "MAX_DEFINITION_ENTRIES", 20_000)
    with pytest.raises(AdministrationError, match="request has more than 20000 entries"):
        asked(server, do="definitions import", content={"unknown": [1] * 20_000})


def test_a_large_request_is_decoded_in_another_thread(server: Administered) -> None:
    queue = {"vhost": "/", "name": "q", "durable": True, "auto_delete": False}
    content = {"queues": [queue] * 2000}
    request = msgspec.json.encode({"do": "definitions import", "content": content})
    work = carried_out(request, server.administration, BY)
    decode = next(work)
    assert decode is not None
    read = work.send(decode())
    assert read is not None
    assert len(read().queues) == 2000
    work.close()


def test_a_request_with_very_many_entries_is_counted_in_steps(server: Administered) -> None:
    content = b'{"do": "users list", "x": [' + b"[1]," * 100_000 + b"1]}"
    steps = 0
    with pytest.raises(AdministrationError, match="entries"):
        for asked_ in carried_out(content, server.administration, BY):
            assert asked_ is None  # nothing was built of it
            steps += 1
    assert steps > 10


@pytest.mark.parametrize("rest", ["", " " * (1 << 17)], ids=["small", "large"])
def test_a_request_that_is_wrong_is_refused_from_either_thread(
    server: Administered, rest: str
) -> None:
    for wrong, reason in (
        ('{"do": "users list"', "not a request"),
        ('{"do": "users lost"}', "not a request"),
        ('{"do": "definitions import", "content": [1]}', "definitions: Expected `object`"),
        ('{"do": "users set-limits", "name": "u", "limits": {"a": "b"}}', "not a request"),
    ):
        with pytest.raises((AdministrationError, DefinitionsError), match=reason):
            done(carried_out((wrong + rest).encode(), server.administration, BY))


def test_connections_are_listed_and_closed_by_name_user_and_vhost(
    server: Administered, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clients = [server.client("/"), server.client(), server.client()]
    early = SimulatedClient(server)  # a client that has not said which user it is
    for number, client in enumerate(clients):
        client.connection.name = f"client {number}"
    rows = asked(server, do="connections list")
    row = {"user": USER, "state": "running", "channels": 1, "client": ""}
    assert rows == [
        {"name": f"client {number}", "vhost": vhost, **row}
        for number, vhost in enumerate(("/", "shop", "shop"))
    ]
    assert len(asked(server, do="connections list", vhost="shop")) == 2
    assert asked(server, do="connections list", user="other") == []

    close = {"do": "connections close", "reason": "why " * 100}
    with pytest.raises(AdministrationError, match="say which"):
        asked(server, **close)
    with pytest.raises(MissingError, match="no open connection 'client 0'"):
        asked(server, **close, name="client 0", vhost="shop")
    assert asked(server, **close, user="other") == {"closed": 0}
    assert not any(map(closed_with, clients))
    assert asked(server, **close, name="client 1") == {"closed": 1}
    code, text = closed_with(clients[1]) or (0, "")
    assert (code, text[:30]) == (320, "CONNECTION_FORCED - why why wh")
    assert [closed_with(clients[0]), closed_with(clients[2])] == [None, None]
    states = [one["state"] for one in asked(server, do="connections list", vhost="shop")]
    assert states == ["closing", "running"]
    assert asked(server, do="connections close", user=USER) == {"closed": 2}
    for client in (clients[0], clients[2]):
        assert closed_with(client) == (320, "CONNECTION_FORCED - closed by an operator")
    assert not early.connection.is_finished
    lines = [vars(one) for one in caplog.records if one.msg == "connection closed by operator"]
    assert [(one["by"], one["target"], one["user"]) for one in lines[:1]] == [
        ("test", "client 1", USER)
    ]


def test_an_import_keeps_tags_that_mean_nothing_here_and_says_so(
    server: Administered, caplog: pytest.LogCaptureFixture
) -> None:
    user = User(name="anna", password_hash=b"", listed_tags=["management", "accounting"])
    done(server.administration.import_definitions(BY, Definitions(users=[user])))
    assert server.administration.tags_of("anna") == ["management", "accounting"]
    [warning] = [one for one in caplog.records if one.message == "tags without a meaning"]
    assert vars(warning)["tags"] == "accounting"


def test_a_user_without_a_password_does_not_get_in_without_one(server: Administered) -> None:
    """CVE-2016-9877: no user logs in with an empty password."""
    server.do(server.administration.set_user(BY, User(name="none", password_hash=b"")))
    server.do(server.administration.set_user(BY, User(name="some", password="x")))
    for user in ("none", "some", "nobody"):
        assert not server.users.check(user, b"")
        assert not server.users.is_known(user, b"")
    assert not server.users.check("none", b"x")


def test_the_last_user_and_the_last_vhost_stay(server: Administered) -> None:
    """Otherwise the next start would create those of a new store."""
    server.do(server.administration.delete_user(BY, USER))
    with pytest.raises(AdministrationError, match="last user"):
        server.do(server.administration.delete_user(BY, "other"))
    server.do(server.administration.delete_vhost(BY, "/"))
    with pytest.raises(AdministrationError, match="last vhost"):
        server.do(server.administration.delete_vhost(BY, "shop"))


def test_another_password_ends_connections_and_the_same_does_not(server: Administered) -> None:
    administration = server.administration
    server.do(administration.set_user(BY, User(name=USER, password="one"), must_exist=True))
    client = server.client()
    server.do(administration.set_user(BY, User(name=USER, password="one", listed_tags=[])))
    server.do(
        administration.set_user(
            BY, User(name=USER, password_hash=b"", listed_tags=["management"]), keeps=True
        )
    )
    assert closed_with(client) is None
    assert server.users.may(USER, "management")
    assert server.users.check(USER, b"one")
    server.do(administration.set_user(BY, User(name=USER, password="two")))
    assert closed_with(client) == (
        320,
        "CONNECTION_FORCED - the password of user 'guest' was changed",
    )


def test_users_that_exist_or_do_not(server: Administered) -> None:
    administration = server.administration
    with pytest.raises(AdministrationError, match="exists already"):
        done(administration.set_user(BY, User(name=USER, password="x"), must_exist=False))
    with pytest.raises(MissingError, match="no user 'nobody'"):
        done(administration.set_user(BY, User(name="nobody", password="x"), must_exist=True))
    with pytest.raises(MissingError):
        done(administration.delete_user(BY, "nobody"))
    with pytest.raises(AdministrationError, match="no tag 'administator'"):
        done(SetUser(name=USER, tags=["administator"]).done(administration, BY))


def test_a_permission_that_is_cleared_ends_consumers_and_refuses_publishers(
    server: Administered,
) -> None:
    """CVE-2026-57218: a revoked right reaches clients that are connected already."""
    client = server.client()
    client.ask(1, methods.QueueDeclare(queue="q", durable=True))
    client.ask(1, methods.BasicConsume(queue="q", consumer_tag="c"))
    client.answers.clear()
    server.do(server.administration.permissions.clear(BY, USER, "shop"))
    assert [type(answer.method) for answer in client.answers] == [methods.BasicCancel]
    (answer,) = client.ask(1, methods.QueueDeclare(queue="q", durable=True))
    assert isinstance(answer.method, methods.ChannelClose)
    assert answer.method.reply_code == 403
    # Given again, it counts at once.
    everything = Permission(user=USER, vhost="shop", **ALL)
    server.do(server.administration.permissions.set(BY, everything))
    client.ask(2, methods.ChannelOpen())
    (answer,) = client.ask(2, methods.QueueDeclare(queue="q", durable=True))
    assert isinstance(answer.method, methods.QueueDeclareOk)


def test_topic_permissions_are_set_listed_and_cleared(server: Administered) -> None:
    administration = server.administration
    asked = TopicPermission(user=USER, vhost="shop", exchange="e", write="^a", read="^b")
    server.do(administration.permissions.set_topic(BY, asked))
    # Other permissions do not touch it.
    server.do(administration.permissions.set(BY, Permission(user=USER, vhost="shop", **ALL)))
    assert administration.permissions.all_topics(USER) == [
        {"user": USER, "vhost": "shop", "exchange": "e", "write": "^a", "read": "^b"}
    ]
    with pytest.raises(MissingError):
        done(administration.permissions.clear_topics(BY, USER, "shop", "f"))
    server.do(administration.permissions.clear_topics(BY, USER, "shop"))
    assert administration.permissions.all_topics() == []


def test_topic_permissions_may_come_before_the_permissions_and_outlive_them(
    server: Administered,
) -> None:
    administration, broker = server.administration, server.broker
    asked = TopicPermission(user=USER, vhost="shop", exchange="e", write="^a", read="^b")
    row = {"user": USER, "vhost": "shop", "exchange": "e", "write": "^a", "read": "^b"}
    if administration.permissions.all(USER, "shop"):
        server.do(administration.permissions.clear(BY, USER, "shop"))
    server.do(administration.permissions.set_topic(BY, asked))
    for _ in range(2):
        assert administration.permissions.all_topics(USER) == [row]
        # A restriction lets no user in.
        assert administration.permissions.all(USER, "shop") == []
        with pytest.raises(NotAllowedError):
            broker.access(USER, "shop")
        with pytest.raises(MissingError):
            done(administration.permissions.clear(BY, USER, "shop"))
        server.do(administration.permissions.set(BY, Permission(user=USER, vhost="shop", **ALL)))
        access = broker.access(USER, "shop")
        access.check("write", "exchange", "e")
        with pytest.raises(AccessRefusedError):
            access.check_topic("write", "e", "b")
        server.do(administration.permissions.clear(BY, USER, "shop"))
        with pytest.raises(AccessRefusedError):
            access.check("write", "exchange", "e")
    server.do(administration.permissions.clear_topics(BY, USER, "shop"))
    with pytest.raises(MissingError):
        done(administration.permissions.clear_topics(BY, USER, "shop"))
    assert "shop" not in [vhost for _, vhost, _ in broker.granted()]


@pytest.mark.parametrize("operator", [False, True])
def test_policies_are_set_and_cleared(server: Administered, operator: bool) -> None:
    administration = server.administration
    server.vhost.declare_queue(
        "q", durable=True, exclusive=False, auto_delete=False, arguments={}, connection=None
    )

    def policy(name: str, **definition: Any) -> PolicyDefinition:
        return PolicyDefinition(vhost="/", name=name, pattern="^q", settings=definition)

    server.do(administration.policies.set(BY, policy("a", **{"max-length": 3}), operator=operator))
    server.do(administration.policies.set(BY, policy("b", **{"max-length": 4}), operator=operator))
    assert server.vhost.queue("q").settings.max_length == 4
    server.do(administration.policies.clear(BY, "/", "b", operator=operator))
    assert server.vhost.queue("q").settings.max_length == 3
    server.restart()
    assert server.vhost.queue("q").settings.max_length == 3
    with pytest.raises(AdministrationError, match="no policy key 'max-lenght'"):
        done(administration.policies.set(BY, policy("c", **{"max-lenght": 1})))
    with pytest.raises(AdministrationError, match="-1 is not from 0"):
        done(administration.policies.set(BY, policy("c", **{"max-length": -1})))
    with pytest.raises(MissingError):
        done(administration.policies.clear(BY, "/", "b", operator=operator))


def fill(server: SimulatedServer, vhost: str, queues: int) -> None:
    """Declare what a virtual host may have in it."""
    where = server.broker.vhost(vhost)
    for number in range(queues):
        where.declare_queue(
            f"q{number}",
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments={"x-max-priority": 2} if number % 5 == 0 else {},
            connection=None,
        )
    for name, kind, arguments in (
        ("e", "topic", {}),
        ("late", "x-delayed-message", {"x-delayed-type": "fanout"}),
    ):
        where.exchange_definitions.declare(
            name, kind, durable=True, auto_delete=False, internal=False, arguments=arguments
        )
    where.bindings.bind(where.exchange("e"), "amq.topic", "#", {})
    where.bindings.bind(where.exchange("amq.fanout"), "amq.topic", "#", {})
    where.bindings.bind(where.queue("q0"), "e", "k", {})


def rows_of(server: SimulatedServer, vhost: str) -> list[str]:
    """Return what the catalog still has of a virtual host."""
    store = server.store
    found = [
        table
        for table in ("exchanges", "bindings", "policies")
        for row in store.definitions.rows(table).values()
        if row["vhost"] == vhost
    ]
    found += [key for key in store.definitions.rows("permissions") if key.endswith(f"\0{vhost}")]
    definitions: list[Any] = [queue.definition for queue in store.queues.values()]
    return found + [one["name"] for one in definitions if one["vhost"] == vhost]


def test_a_deleted_vhost_leaves_nothing_and_is_deleted_in_steps(server: Administered) -> None:
    fill(server, "shop", 250)
    inside, outside = server.client("shop"), server.client("/")
    inside.ask(1, methods.QueueDeclare(queue="mine", exclusive=True))
    inside.ask(1, methods.BasicPublish(exchange="", routing_key="q0"))
    steps = 0
    for _ in server.administration.delete_vhost(BY, "shop"):
        steps += 1
        assert "shop" not in server.broker.vhosts
    server.settle()
    assert steps >= 4, "two steps for the queues, and more"
    assert closed_with(inside) == (320, "CONNECTION_FORCED - vhost 'shop' was deleted")
    assert closed_with(outside) is None
    assert not server.broker.deleted
    assert rows_of(server, "shop") == []
    assert "shop" not in server.store.definitions.rows("vhosts")
    # The name can be used again, and is empty.
    server.do(server.administration.add_vhost(BY, VirtualHostDefinition(name="shop"), USER))
    assert not server.broker.vhost("shop").queues
    assert server.administration.permissions.all(vhost="shop") == [
        {"user": USER, "vhost": "shop", **ALL}
    ]


def test_a_vhost_that_is_being_deleted_cannot_be_created_or_opened(server: Administered) -> None:
    fill(server, "shop", 3)
    work = server.administration.delete_vhost(BY, "shop")
    next(work)
    with pytest.raises(AdministrationError, match="still being deleted"):
        done(server.administration.add_vhost(BY, VirtualHostDefinition(name="shop")))
    client = SimulatedClient.opened(server, "shop")
    assert client.connection.vhost == ""
    done(work)
    done(server.administration.add_vhost(BY, VirtualHostDefinition(name="shop")))


def test_a_power_cut_during_the_deletion_of_a_vhost() -> None:
    """The next start deletes what is left, from the first commit on."""
    rng = random.Random("vhost")
    with Administered() as server:
        fill(server, "shop", 130)
        server.settle()
        whole = len(rows_of(server, "shop"))
        disk = server.disk.fork()
        operations: list[Operation] = []
        server.disk.record = operations.append
        server.do(server.administration.delete_vhost(BY, "shop"))
        server.disk.record = None
    outcomes = set()
    for operation in operations:
        disk.redo(operation)
        for image in crash_images(disk, rng, 2):
            outcomes.add(deleted_on(image.files.fork(), whole))
    assert outcomes == {"rest", "gone"}


def deleted_on(disk: Any, whole: int) -> str:
    server = SimulatedServer.__new__(SimulatedServer)
    server.clients = []
    super(SimulatedServer, server).__init__(disk=disk)
    try:
        if "shop" in server.broker.vhosts:
            assert len(rows_of(server, "shop")) == whole
            return "whole"
        outcome = "rest" if server.broker.deleted else "gone"
        done(Administration(server.broker, Users(server.store)).delete_rest())
        assert rows_of(server, "shop") == []
        assert list(server.store.definitions.rows("vhosts")) == ["/"]
        return outcome
    finally:
        server.store.abandon()


def test_tracing_is_of_a_running_broker(server: Administered) -> None:
    administration = server.administration
    server.do(administration.set_tracing(BY, "shop", on=True))
    assert [row["tracing"] for row in administration.vhosts()] == [False, True]
    with pytest.raises(AdministrationError, match="the broker does not run"):
        server.do(administration.set_tracing(By("", STOPPED), "shop", on=False))
    with pytest.raises(MissingError):
        server.do(administration.set_tracing(BY, "none", on=True))
