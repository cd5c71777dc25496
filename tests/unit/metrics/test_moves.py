"""Each metric moves when what it counts happens: `moves.toml` says by which deed, done by clients
and operators of the real app, with its sampler and its disk.
"""

import contextlib
import shutil
import struct
import threading
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from amqpstore.checkpoints.checkpoint import Checkpoint
from amqpstore.checkpoints.compaction import Compaction
from amqpstore.system.datasyncs import KernelDatasyncs
from amqpstore.system.files import OsFile
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.metrics import objects, replicas
from amqpstore_server.terms.replication_figures import FollowerFigures, ReplicationFigures
from tests.conformance import wire_client
from tests.conformance.test_rules_table import functions_in
from tests.conformance.wire_client import WireClient
from tests.served import TIMEOUT_S, ServedApp
from tests.waiting import wait_until

MOVES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("moves.toml").read_text("utf-8"))
PERSISTENT = b"\x10\0\2"
TRANSIENT = b"\x10\0\1"
BODY = bytes(100_000)
MEMORY_BYTES = 1 << 20
FAMILIES = "&".join(f"family={name}" for name in objects.GROUPS)
NODE = "/nodes/amqpstore@here"
TO_DEAD = "dead"

Value = float | bool
Seen = dict[str, dict[tuple[str, ...], Value]]
"""Values by the name of the metric, or the path of the field, and by its labels."""


class Scene(NamedTuple):
    """The broker, and a client with a channel that confirms."""

    served: ServedApp
    client: WireClient
    stack: contextlib.ExitStack
    patch: pytest.MonkeyPatch
    held: dict[type[Checkpoint] | type[Compaction], threading.Event]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    patched = monkeypatch.setattr
    patched(KernelDatasyncs, "open", lambda _signal: None)  # the kernel cannot be held
    with contextlib.ExitStack() as stack:
        served = ServedApp(
            str(tmp_path / "store"),
            node_name="amqpstore@here",
            memory_bytes=MEMORY_BYTES,
            segment_bytes=1 << 16,
            metrics_max_objects=100,
        )
        stack.enter_context(served)
        client = stack.enter_context(served.client())
        declare(client, "q")
        declare(client, TO_DEAD)
        client.send(wire_client.confirm_select(1))
        client.expect(wire_client.CONFIRM_SELECT_OK, 1)
        publish(client, "q")
        yield Scene(served, client, stack, monkeypatch, {})


def declare(client: WireClient, queue: str, **arguments: str | int) -> None:
    fields = [
        wire_client.field(f"x-{name.replace('_', '-')}", b"S", wire_client.long_string(value))
        if isinstance(value, str)
        else wire_client.field(f"x-{name.replace('_', '-')}", b"I", struct.pack(">i", value))
        for name, value in arguments.items()
    ]
    head = bytes(2) + wire_client.short_string(queue) + b"\2"
    client.send(wire_client.method(1, wire_client.QUEUE_DECLARE, head + wire_client.table(*fields)))
    client.expect(wire_client.QUEUE_DECLARE_OK, 1)


def publish(
    client: WireClient, queue: str, body: bytes = b"x", properties: bytes = PERSISTENT
) -> None:
    client.send(wire_client.publish(1, queue, body, properties))
    client.expect(wire_client.BASIC_ACK, 1)


def get(client: WireClient, queue: str, *, no_ack: bool = False) -> int:
    """Fetch a message. Returns its delivery tag."""
    client.send(wire_client.basic_get(1, queue, no_ack))
    arguments = client.expect(wire_client.BASIC_GET_OK, 1).arguments
    client.expect_content(1)
    return int.from_bytes(arguments[:8], "big")


def settle(client: WireClient, tag: int, which: wire_client.Method, flag: int) -> None:
    client.send(wire_client.method(1, which, struct.pack(">QB", tag, flag)))


def consume(client: WireClient, queue: str, *, no_ack: bool) -> None:
    client.send(wire_client.basic_consume(1, queue, queue, no_ack))
    client.expect(wire_client.BASIC_CONSUME_OK, 1)


# The deeds, in their order.


def log_in(scene: Scene) -> None:
    scene.stack.enter_context(scene.served.client())


def open_a_channel(scene: Scene) -> None:
    scene.client.open_channel(2)


def log_in_wrongly(scene: Scene) -> None:
    with WireClient.greeted(scene.served.url) as client:
        client.send(wire_client.start_ok(response=b"\0guest\0wrong"))
        client.read_to_end()


def log_out(scene: Scene) -> None:
    with scene.served.client():
        pass


def bind_exchange(scene: Scene) -> None:
    scene.client.send(wire_client.queue_bind(1, "q", "amq.topic", "k"))
    scene.client.next_frame()


def declare_queue(scene: Scene) -> None:
    declare(scene.client, "another")


def declare_exchange(scene: Scene) -> None:
    assert scene.served.request("PUT", "/exchanges/%2F/made", {"type": "fanout"}).ok


def declare_virtual_host(scene: Scene) -> None:
    assert scene.served.request("PUT", "/vhosts/made").ok


def name_the_cluster(scene: Scene) -> None:
    assert scene.served.request("PUT", "/cluster-name", {"name": "shop"}).ok


def delete_queue(scene: Scene) -> None:
    scene.client.send(
        wire_client.method(
            1, wire_client.QUEUE_DELETE, bytes(2) + wire_client.short_string("another") + b"\0"
        )
    )
    scene.client.expect(wire_client.QUEUE_DELETE_OK, 1)


def publish_messages(scene: Scene) -> None:
    for _ in range(3):
        publish(scene.client, "q")
    publish(scene.client, "q", b"x", TRANSIENT)


def publish_on_another_channel(scene: Scene) -> None:
    scene.client.send(wire_client.publish(2, "q", b"x"))


def publish_to_an_exchange(scene: Scene) -> None:
    scene.client.send(
        wire_client.publish_method(1, "k", "amq.topic"), wire_client.header(1, 0, PERSISTENT)
    )
    scene.client.expect(wire_client.BASIC_ACK, 1)


def publish_nowhere(scene: Scene) -> None:
    publish(scene.client, "nowhere")


def publish_nowhere_and_get_it_back(scene: Scene) -> None:
    scene.client.send(
        wire_client.publish_method(1, "nowhere", mandatory=True), wire_client.header(1, 0)
    )
    scene.client.expect(wire_client.BASIC_RETURN, 1)
    scene.client.expect_content(1)
    scene.client.expect(wire_client.BASIC_ACK, 1)


def get_and_ack(scene: Scene) -> None:
    settle(scene.client, get(scene.client, "q"), wire_client.BASIC_ACK, 0)


def get_without_ack(scene: Scene) -> None:
    get(scene.client, "q", no_ack=True)


def get_nothing(scene: Scene) -> None:
    declare(scene.client, "empty")
    scene.client.send(wire_client.basic_get(1, "empty"))
    scene.client.expect(wire_client.BASIC_GET_EMPTY, 1)


def get_only(scene: Scene) -> None:
    get(scene.client, "q")


def requeue_and_get_again(scene: Scene) -> None:
    settle(scene.client, get(scene.client, "q"), wire_client.BASIC_REJECT, 1)
    get(scene.client, "q")


def consume_without_acks(scene: Scene) -> None:
    declare(scene.client, "quick")
    publish(scene.client, "quick")
    consume(scene.client, "quick", no_ack=True)
    scene.client.expect(wire_client.BASIC_DELIVER, 1)
    scene.client.expect_content(1)


def consume_with_acks(scene: Scene) -> None:
    scene.client.send(wire_client.method(1, wire_client.BASIC_QOS, struct.pack(">IHB", 0, 1, 0)))
    scene.client.expect(wire_client.BASIC_QOS_OK, 1)
    scene.client.send(wire_client.method(1, wire_client.BASIC_QOS, struct.pack(">IHB", 0, 9, 1)))
    scene.client.expect(wire_client.BASIC_QOS_OK, 1)
    declare(scene.client, "acked")
    publish(scene.client, "acked")
    publish(scene.client, "acked")
    consume(scene.client, "acked", no_ack=False)
    scene.client.expect(wire_client.BASIC_DELIVER, 1)
    scene.client.expect_content(1)


def be_paged_out(scene: Scene) -> None:
    """Publish more than memory takes, and read it back."""
    declare(scene.client, "large")
    for _ in range(3 * MEMORY_BYTES // len(BODY)):
        publish(scene.client, "large", BODY)
        publish(scene.client, "q")


def read_back(scene: Scene) -> None:
    for _ in range(3 * MEMORY_BYTES // len(BODY)):
        get(scene.client, "large", no_ack=True)
    begin_a_checkpoint(scene)  # finds that much of the log is garbage


def reject(scene: Scene) -> None:
    declare(scene.client, "rejected", dead_letter_exchange="", dead_letter_routing_key=TO_DEAD)
    publish(scene.client, "rejected")
    settle(scene.client, get(scene.client, "rejected"), wire_client.BASIC_REJECT, 0)


def expire(scene: Scene) -> None:
    declare(
        scene.client,
        "expired",
        dead_letter_exchange="",
        dead_letter_routing_key=TO_DEAD,
        message_ttl=1,
    )
    publish(scene.client, "expired")


def exceed_the_length(scene: Scene) -> None:
    declare(
        scene.client,
        "long",
        dead_letter_exchange="",
        dead_letter_routing_key=TO_DEAD,
        max_length=0,
    )
    publish(scene.client, "long")


def exceed_the_deliveries(scene: Scene) -> None:
    declare(
        scene.client,
        "limited",
        dead_letter_exchange="",
        dead_letter_routing_key=TO_DEAD,
        delivery_limit=0,
    )
    publish(scene.client, "limited")
    settle(scene.client, get(scene.client, "limited"), wire_client.BASIC_REJECT, 1)


def have_letters_wait(scene: Scene) -> None:
    """No queue takes them."""
    declare(scene.client, "full", max_length=0, overflow="reject-publish")
    die_at_least_once(scene, "waiting", "full")


def die_at_least_once(scene: Scene, queue: str = "surely", to: str = TO_DEAD) -> None:
    declare(
        scene.client,
        queue,
        dead_letter_exchange="",
        dead_letter_routing_key=to,
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
    )
    publish(scene.client, queue, b"letter")
    settle(scene.client, get(scene.client, queue), wire_client.BASIC_REJECT, 0)


def fail_in_a_queue(scene: Scene) -> None:
    """An exchange type of a package fails with a dead letter."""
    declare(scene.client, "fails", dead_letter_exchange="amq.fanout")
    publish(scene.client, "fails")
    scene.patch.setattr(FanoutExchange, "route", _fail)
    settle(scene.client, get(scene.client, "fails"), wire_client.BASIC_REJECT, 0)


def _fail(*_: object) -> NoReturn:
    raise LookupError


def begin_a_checkpoint(scene: Scene) -> None:
    """Make a checkpoint due."""
    maintenance = scene.served.store._maintenance
    scene.served.call(partial(setattr, maintenance, "_checkpoint_ms", -(10**9)))


def end_a_checkpoint(scene: Scene) -> None:
    scene.held[Checkpoint].set()


def end_a_compaction(scene: Scene) -> None:
    scene.held[Compaction].set()


def hold(scene: Scene, kind: type[Checkpoint] | type[Compaction]) -> None:
    """Have some work take until that is over."""
    run, is_over = kind.run, threading.Event()

    def held(work: Any) -> Any:
        assert is_over.wait(TIMEOUT_S)
        return run(work)

    scene.patch.setattr(kind, "run", held)
    scene.held[kind] = is_over
    scene.stack.callback(is_over.set)


def allow_more_memory(scene: Scene) -> None:
    scene.served.reload(memory_bytes=2 * MEMORY_BYTES)


def run_out_of_memory_and_disk(scene: Scene) -> None:
    """All memory is too much then, and all free space too little."""
    scene.served.reload(memory_watermark=2, least_free_bytes=1 << 50)


def wait_in_a_transaction(scene: Scene) -> None:
    client = scene.stack.enter_context(scene.served.client())
    client.send(wire_client.method(1, wire_client.TX_SELECT))
    client.expect(wire_client.TX_SELECT_OK, 1)
    publish_messages(scene)
    tag = get(client, "q")
    settle(client, tag, wire_client.BASIC_ACK, 0)
    client.send(wire_client.publish(1, "q", b"x"))


def wait_for_the_disk(scene: Scene) -> None:
    """A sync takes until the scene ends."""
    is_over = threading.Event()
    datasync = OsFile.datasync

    def sync(file: OsFile) -> None:
        assert is_over.wait(TIMEOUT_S)
        datasync(file)

    scene.stack.callback(is_over.set)
    scene.patch.setattr(OsFile, "datasync", sync)
    scene.client.send(wire_client.publish(1, "q", b"x", PERSISTENT))


def log_in_by_http(scene: Scene) -> None:
    scene.served.get("/overview")


DEEDS: tuple[Callable[[Scene], None], ...] = (
    begin_a_checkpoint,
    end_a_checkpoint,
    log_in,
    open_a_channel,
    log_in_wrongly,
    log_out,
    log_in_by_http,
    declare_exchange,
    declare_virtual_host,
    name_the_cluster,
    declare_queue,
    delete_queue,
    bind_exchange,
    publish_messages,
    publish_on_another_channel,
    publish_to_an_exchange,
    publish_nowhere,
    publish_nowhere_and_get_it_back,
    get_only,
    get_and_ack,
    get_without_ack,
    get_nothing,
    requeue_and_get_again,
    consume_without_acks,
    consume_with_acks,
    be_paged_out,
    read_back,
    end_a_compaction,
    reject,
    expire,
    exceed_the_length,
    exceed_the_deliveries,
    have_letters_wait,
    die_at_least_once,
    fail_in_a_queue,
    allow_more_memory,
    wait_in_a_transaction,
    wait_for_the_disk,
    run_out_of_memory_and_disk,
)
"""Steps of the scene, in their order."""


def seen(scene: Scene) -> Seen:
    """All metrics, and the live fields of the API, once the sampler has looked."""
    sampler = scene.served.app._sampler

    def look() -> None:
        for steps in (sampler.sample_totals(), sampler.sample_objects()):
            for _ in steps:
                pass

    clock = scene.served.store.clock
    began_ms = clock.monotonic_ms()
    wait_until(lambda: clock.monotonic_ms() > began_ms, "the next sample")  # rates need some time
    scene.served.call(look)
    values: Seen = {}
    for path in ("/metrics", f"/metrics/detailed?{FAMILIES}"):
        for family in text_string_to_metric_families(scene.served.scrape(path)):
            for sample in family.samples:
                if not sample.name.endswith(("_bucket", "_created")):
                    labels = (*sorted(sample.labels.values()),)
                    values.setdefault(sample.name, {})[labels] = sample.value
    for path in ("/overview", NODE):
        for name, value in fields(scene.served.get(path), path.partition("@")[0]):
            values[name] = {(): value}
    return values


def fields(row: Any, path: str) -> Iterator[tuple[str, Value]]:
    """The numbers and flags of an answer, without rates and lists."""
    if isinstance(row, dict):
        for name, value in row.items():
            if not name.endswith("_details"):
                yield from fields(value, f"{path}/{name}")
    elif isinstance(row, int | float):
        yield path, row


def moved(before: Seen, after: Seen) -> set[str]:
    """The names of which something has another value; what is not there counts as 0."""
    return {
        name
        for name in before.keys() | after.keys()
        for labels in before.get(name, {}).keys() | after.get(name, {}).keys()
        if before.get(name, {}).get(labels, 0) != after.get(name, {}).get(labels, 0)
    }


def rows(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = MOVES[kind]
    return found


def test_each_metric_moves_by_its_deed(scene: Scene) -> None:
    """Metrics and fields that no row names are findings, and so are rows without one."""
    for kind in (Checkpoint, Compaction):
        hold(scene, kind)
    before = seen(scene)
    names = {*before}
    assert [*rows("deeds")] == [deed.__name__ for deed in DEEDS]
    for deed in DEEDS:
        wanted = {*rows("deeds")[deed.__name__]}
        deed(scene)
        now = before

        def has_moved(since: Seen = before, wanted: set[str] = wanted) -> bool:
            nonlocal now
            now = seen(scene)
            return wanted <= moved(since, now)

        try:
            wait_until(has_moved, deed.__name__)
        except AssertionError:
            pytest.fail(f"after {deed.__name__} these are as before: {wanted - moved(before, now)}")
        names |= {*now}
        before = now
    listed = [name for deed in rows("deeds").values() for name in deed]
    listed += [*rows("elsewhere"), *rows("fixed"), *rows("of_the_machine")]
    assert sorted(names) == sorted(listed)


def test_what_other_tests_see_is_seen() -> None:
    for name, test in rows("elsewhere").items():
        path, _, function = test.partition("::")
        assert function in functions_in(path), f"{name}: {test}"


def test_each_metric_of_a_group_is_moved_by_members() -> None:
    figures = ReplicationFigures(*repeat(0, 7))  # type: ignore[arg-type]
    source: Any = SimpleNamespace(replication=lambda: figures)
    follower = FollowerFigures(*repeat(0, 13))  # type: ignore[arg-type]
    for kind, there in (
        ("of_a_leader", replicas.families(source)),
        ("of_a_follower", replicas.of_follower(follower)),
    ):
        assert {family.name for family in there} == rows(kind).keys()
        for name, how in rows(kind).items():
            path, _, function = how.partition("::")
            assert function in functions_in(path), f"{name}: {how}"


def test_what_a_start_has_found_is_told(scene: Scene, tmp_path: Path) -> None:
    """A power cut came in the middle of a write, and the disk has lost what was synced."""
    findings = ("torn_bytes", "rolled_back", "lost", "damaged")
    names = [f"amqpstore_recovery_{name}" for name in findings]
    names += ["amqpstore_quarantined_segments", "amqpstore_unreadable_messages"]
    sound = seen(scene)
    assert not any(sound[name][()] for name in names)
    for _ in range(3):
        publish(scene.client, "q", bytes(range(256)) * 400)
    no_socket = shutil.ignore_patterns("*.sock")
    image = shutil.copytree(scene.served.config.data, tmp_path / "image", ignore=no_socket)
    first, *_, last = sorted(image.glob("segments/*.segment"))
    content = bytearray(last.read_bytes())
    end = len(content.rstrip(b"\0"))
    content[end - 20 : end] = bytes(20)
    last.write_bytes(content)
    content = bytearray(first.read_bytes())
    middle = len(content.rstrip(b"\0")) // 2
    content[middle] ^= 1
    first.write_bytes(content)
    with ServedApp(str(image), node_name="amqpstore@here") as served:
        damaged = seen(scene._replace(served=served))
        assert all(damaged[name][()] for name in names)
        assert damaged["amqpstore_recovery_seconds"] != sound["amqpstore_recovery_seconds"]
