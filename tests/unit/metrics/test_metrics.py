"""Metrics: names, values and form, by prometheus-client's parsers."""

import re
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from amqpstore.evidence.shortfall import Shortfall
from amqpstore.format.departures import Departure
from amqpstore.format.index import PagedFile
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.monitoring.counters import ChannelCounters, ChannelTotals
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.holds import LoopHolds
from amqpstore_server.metrics import health, objects, replicas, whole
from amqpstore_server.metrics.exposition import MetricsFormat, label, line
from amqpstore_server.metrics.families import Described, single
from amqpstore_server.metrics.source import MetricsSource
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from amqpstore_server.statistics.sampler import Sampler
from amqpstore_server.terms.replication_figures import FollowerFigures, ReplicationFigures
from tests.broker_process import REPOSITORY
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.fuzz.test_connection import content
from tests.unit.broker.simulated import Client

openmetrics: Any = openmetrics_parser.text_string_to_metric_families
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Metered:
    """A broker with some traffic, and its metrics."""

    def __init__(self) -> None:
        self.server = SimulatedServer()
        self.most = 1000
        self.replication: ReplicationFigures | None = None
        sampler = Sampler(
            self.server.broker, lambda: [one.connection for one in self.server.clients]
        )
        self.alarms = Alarms(self.server.store, 1 << 40, lambda: None)
        self.source = MetricsSource(
            self.server.broker,
            sampler,
            self.alarms,
            LoopHolds({}),
            lambda: [one.connection for one in self.server.clients],
            Product("amqpstore", "1"),
            "amqpstore@here",
            lambda: self.most,
            lambda: self.replication,
        )
        self.server.queue("q")
        self.client = Client(self.server)
        self.client.channel.select_confirms()
        self.client.publish("", "q", "a", "b", "c")
        self.client.publish("", "nowhere", "d")
        self.server.settle()
        self.client.get("q")
        stranger = SimulatedClient(self.server)
        stranger.send(PROTOCOL_HEADER)
        stranger.ask(0, stranger.start_ok(password=b"wrong"))
        self.amqp = SimulatedClient.opened(self.server, channels=1)
        self.amqp.ask(1, methods.BasicConsume(queue="q", consumer_tag="tag"))
        for steps in (sampler.sample_totals(), sampler.sample_objects()):
            for _ in steps:
                pass

    def text(self, accept: str = "") -> str:
        written = MetricsFormat(accept)
        found = map(written.family, whole.families(self.source))
        return b"".join([*found, written.end]).decode()

    def samples(self, text: str | None = None) -> dict[str, float]:
        """All samples, by their name and, if they have any, their labels."""
        parsed = text_string_to_metric_families(self.text() if text is None else text)
        return {
            one.name + "".join(f" {value}" for _, value in sorted(one.labels.items())): one.value
            for family in parsed
            for one in family.samples
        }

    def detailed(self, *names: str, vhosts: tuple[str, ...] | None = None) -> dict[str, float]:
        shown = objects.detailed(self.source, names, vhosts, MetricsFormat(""))
        return self.samples(b"".join(shown).decode())


@pytest.fixture
def metered() -> Iterator[Metered]:
    made = Metered()
    with made.server:
        yield made


def test_channels_are_summed_once_a_scrape_and_once_a_pass(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum over ten thousand channels takes milliseconds."""
    sums: list[ChannelTotals] = []
    total = ChannelTotals.total

    def counted(self: ChannelTotals) -> ChannelCounters:
        sums.append(self)
        return total(self)

    monkeypatch.setattr(ChannelTotals, "total", counted)
    sampler = metered.source.sampler
    for ask in (
        metered.text,
        lambda: list(whole.without_sums(metered.source)),
        lambda: list(sampler.sample_totals()),
    ):
        sums.clear()
        ask()
        assert sums == [vhost.channel_totals for vhost in metered.server.broker.vhosts.values()]
    sums.clear()
    list(sampler.sample_objects())
    assert sums == []


def test_totals_are_what_happened(metered: Metered) -> None:
    samples = metered.samples()
    expected = {
        "rabbitmq_global_messages_received_total amqp091": 4,
        "rabbitmq_global_messages_received_confirm_total amqp091": 4,
        "rabbitmq_global_messages_confirmed_total amqp091": 4,
        "rabbitmq_global_messages_routed_total amqp091": 3,
        "rabbitmq_global_messages_unroutable_dropped_total amqp091": 1,
        "rabbitmq_global_messages_delivered_total amqp091 rabbit_classic_queue": 3,
        "rabbitmq_global_messages_delivered_get_manual_ack_total amqp091 rabbit_classic_queue": 1,
        "rabbitmq_channel_messages_published_total": 4,
        "rabbitmq_queue_messages": 3,
        "rabbitmq_queue_messages_ready": 0,
        "rabbitmq_queue_messages_unacked": 3,
        "rabbitmq_queues": 1,
        "rabbitmq_consumers": 1,
        "rabbitmq_connections": 1,
        "rabbitmq_channels": 1,
        "rabbitmq_connections_opened_total": 1,
        "rabbitmq_auth_attempts_total amqp091": 2,
        "rabbitmq_auth_attempts_succeeded_total amqp091": 1,
        "rabbitmq_auth_attempts_failed_total amqp091": 1,
        "rabbitmq_auth_attempts_total http": 0,
        "rabbitmq_queues_created_total": 1,
        "rabbitmq_alarms_memory_used_watermark": 0,
        "amqpstore_batch_messages_count": metered.source.broker.services.store.log.position.lsn - 1,
        "amqpstore_batch_messages_sum": 3,
        "amqpstore_queues_in_memory": 1,
    }
    assert {name: samples[name] for name in expected} == expected
    assert samples["rabbitmq_process_open_fds"] > 3
    assert samples["rabbitmq_process_resident_memory_bytes"] > 1 << 20
    assert samples["amqpstore_segment_bytes"] > 0


def test_a_leader_tells_of_its_followers(metered: Metered) -> None:
    assert not [name for name in metered.samples() if "replication" in name]
    left = {"slow": 3}
    metered.replication = ReplicationFigures(
        7, 3, 1, 2, 5 << 30, 1 << 20, 2, 1, True, left, 4, in_reach=1, is_blocked=True
    )
    samples = metered.samples()
    expected = {
        "amqpstore_replication_term": 7,
        "amqpstore_replication_in_sync": 3,
        "amqpstore_replication_min_in_sync": 2,
        "amqpstore_replication_in_reach": 1,
        "amqpstore_replication_blocked": 1,
        "amqpstore_replication_joining": 1,
        "amqpstore_replication_copies": 2,
        "amqpstore_replication_copied_bytes_total": 5 << 30,
        "amqpstore_replication_copy_left_bytes": 1 << 20,
        "amqpstore_replication_waiting": 1,
        "amqpstore_replication_etcd_refused": 1,
        "amqpstore_replication_left_total slow": 3,
        "amqpstore_replication_refused_frames_total": 4,
    }
    assert {name: samples[name] for name in expected} == expected
    rules = Path(REPOSITORY, "server/deploy/alerts.yaml").read_text("utf-8")
    alerted = set(re.findall(r"(?:amqpstore|rabbitmq)_\w+", rules))
    assert "amqpstore_needs_repair" in alerted
    assert "amqpstore_replication_waiting" in alerted
    assert "amqpstore_replication_in_reach" in alerted
    of_follower = replicas.of_follower(FollowerFigures(*repeat(0, 13)))  # type: ignore[arg-type]
    assert (
        not alerted
        - {name.partition(" ")[0] for name in samples}
        - {family.name for family in of_follower}
    )


def test_what_is_on_disk_only_is_counted(metered: Metered) -> None:
    """The size of what was paged out by a version that did not note it is unknown."""
    stored = metered.server.queue("paged").priorities.lowest
    stored.paged += [PagedFile(1, 1, 4, 3, 0, 300), PagedFile(2, 4, 6, 2, 0)]
    stored.paged_count = 5
    for _ in metered.source.sampler.sample_objects():
        pass
    found = metered.samples()
    names = ("amqpstore_paged_messages", "amqpstore_paged_bytes", "amqpstore_queues_on_disk")
    assert [found[name] for name in names] == [5, 300, 1]


def test_the_cluster_is_told_by_its_store_and_no_path_is_shown(metered: Metered) -> None:
    text = metered.text()
    store_id = metered.server.store.store_id.hex()
    assert f'rabbitmq_cluster_permanent_id="amqpstore-cluster-id-{store_id}"' in text
    assert metered.server.store.directory not in text


def test_both_formats_are_right_and_say_the_same(metered: Metered) -> None:
    text = metered.text(OPEN_METRICS)
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    parsed = {
        (one.name, *sorted(one.labels.items()))
        for family in openmetrics(text)
        for one in family.samples
    }
    plain = {
        (one.name, *sorted(one.labels.items()))
        for family in text_string_to_metric_families(metered.text())
        for one in family.samples
    }
    assert parsed == plain


def test_each_name_is_there_once_with_a_help_text(metered: Metered) -> None:
    names = [line.split()[2] for line in metered.text().splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    helps = [line for line in metered.text().splitlines() if line.startswith("# HELP")]
    assert all(len(line.split()) > 3 for line in helps)


def test_dead_letters_are_counted_by_their_reason(metered: Metered) -> None:
    metered.client.reject("a")
    metered.server.settle()
    name = "rabbitmq_global_messages_dead_lettered_rejected_total"
    found = metered.samples()
    assert found[f"{name} disabled rabbit_classic_queue"] == 1
    assert found[f"{name} at_most_once rabbit_classic_queue"] == 0
    metered.server.queue("letters", dead_letter_exchange="", dead_letter_routing_key="q")
    metered.client.publish("", "letters", "x", "y", "z", expiration="10")
    metered.client.get("letters")
    metered.client.reject("x")
    metered.server.pass_time(20)
    found = metered.samples()
    assert found[f"{name} at_most_once rabbit_classic_queue"] == 1
    name = "rabbitmq_global_messages_dead_lettered_expired_total"
    assert found[f"{name} at_most_once rabbit_classic_queue"] == 2


def test_dead_letters_of_a_transaction_are_counted(metered: Metered) -> None:
    other = Client(metered.server)
    metered.server.queue("letters", dead_letter_exchange="", dead_letter_routing_key="q")
    metered.client.publish("", "letters", "x")
    other.get("letters")
    other.channel.select_transactions()
    other.reject("x")
    name = "rabbitmq_global_messages_dead_lettered_rejected_total"
    assert metered.samples()[f"{name} at_most_once rabbit_classic_queue"] == 0
    other.channel.commit()
    metered.server.settle()
    assert metered.samples()[f"{name} at_most_once rabbit_classic_queue"] == 1


def test_what_has_left_is_counted_by_reason_and_queue(metered: Metered) -> None:
    samples = metered.samples()
    assert samples["amqpstore_messages_left_total unroutable"] == 1
    for reason in Departure:  # all of them are there from the beginning, so that rates work
        assert f"amqpstore_messages_left_total {reason.label}" in samples
    metered.client.ack("a")
    metered.server.queue("letters", dead_letter_exchange="", dead_letter_routing_key="q")
    metered.client.publish("", "letters", "x", "y", expiration="10")
    metered.server.pass_time(20)
    samples = metered.samples()
    assert samples["amqpstore_messages_left_total acked"] == 1
    assert samples["amqpstore_messages_left_total expired"] == 2
    assert samples["amqpstore_messages_dead_lettered_total expired"] == 2
    assert samples["amqpstore_messages_dead_lettered_total maxlen"] == 0
    of_queues = {
        "amqpstore_queue_messages_left_total q acked /": 1,
        "amqpstore_queue_messages_left_total letters expired /": 2,
    }
    assert metered.detailed("queue_departure_metrics") == of_queues
    per_object = metered.samples(
        b"".join(objects.per_object(metered.source, MetricsFormat(""))).decode()
    )
    assert of_queues.items() <= per_object.items()


def test_families_of_objects(metered: Metered) -> None:
    assert metered.detailed("queue_coarse_metrics", "unheard_of") == {
        "rabbitmq_detailed_queue_messages_ready q /": 0,
        "rabbitmq_detailed_queue_messages_unacked q /": 3,
        "rabbitmq_detailed_queue_messages q /": 3,
    }
    assert metered.detailed("queue_consumer_count", "vhost_status") == {
        "rabbitmq_detailed_queue_consumers q /": 1,
        "rabbitmq_cluster_vhost_status /": 1,
    }
    assert metered.detailed("queue_coarse_metrics", vhosts=("other",)) == {}
    found = metered.detailed(*objects.GROUPS)
    assert found["rabbitmq_detailed_channel_messages_delivered_ack_total 1 simulated /"] == 2
    assert found["rabbitmq_detailed_queue_messages_published_total q /"] == 3
    assert found["rabbitmq_cluster_exchange_bindings amq.topic topic /"] == 0


def test_the_queue_of_a_delayed_exchange_is_not_shown(metered: Metered) -> None:
    metered.server.exchange("late", "x-delayed-message", x_delayed_type="fanout")
    metered.client.publish("late", "", "a", headers={"x-delay": 1000})
    found = metered.detailed("queue_coarse_metrics", "exchange_metrics")
    assert (
        found["rabbitmq_detailed_exchange_messages_published_total late x-delayed-message /"] == 1
    )
    assert [name for name in found if "queue_messages " in name] == [
        "rabbitmq_detailed_queue_messages q /"
    ]


def test_metrics_per_object_have_the_names_of_the_totals(metered: Metered) -> None:
    parts = objects.per_object(metered.source, MetricsFormat(""))
    found = metered.samples(b"".join(parts).decode())
    assert found["rabbitmq_queue_messages q /"] == 3


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
@pytest.mark.parametrize("name", ["messages", "messages_total"])
def test_samples_are_those_of_prometheus_client(accept: str, name: str) -> None:
    written, described = MetricsFormat(accept), Described(name, "Messages")
    head = written.head(described)
    for value in ("q", 'a"b\\c\nd{}#\u00fc%d%%', "\\n\\", ""):
        ours = head.text + head.samples([line(label("queue", value))], [3])
        theirs = written.family(single(described, 3, {"queue": value}))
        assert ours == theirs.replace(b" 3.0\n", b" 3\n")


def test_metrics_of_objects_with_hostile_names(metered: Metered) -> None:
    name = 'a"b\\cd{}#\u00fc%d%%'
    metered.server.queue(name)
    shown = objects.per_object(metered.source, MetricsFormat(OPEN_METRICS))
    found = metered.samples(b"".join(shown).decode())
    assert found[f"rabbitmq_queue_messages {name} /"] == 0
    assert found["rabbitmq_queue_messages q /"] == 3


def test_series_have_a_limit_and_what_is_left_out_is_counted(metered: Metered) -> None:
    for number in range(9):
        metered.server.queue(f"r{number}")
    metered.most = 4
    found = metered.detailed("queue_coarse_metrics", "queue_consumer_count")
    assert len(found) == 4 * 4
    assert metered.source.left_out == 6 * 4
    assert metered.samples()["amqpstore_metrics_left_out"] == 24


def test_many_objects_come_in_parts_of_one_family(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        metered.server.queue(f"r{number}")
    monkeypatch.setattr(objects, "_AT_ONCE", 3)
    wanted = ["queue_coarse_metrics"]
    pieces = list(objects.detailed(metered.source, wanted, None, MetricsFormat("")))
    samples = [piece.count(b"}") for piece in pieces]
    assert sorted(count for count in samples if count) == [*3 * [1], *9 * [3]]
    text = b"".join(pieces).decode()
    assert text.count("# TYPE rabbitmq_detailed_queue_messages_ready gauge") == 1
    assert len(metered.samples(text)) == 3 * 10


@pytest.mark.parametrize(
    "found",
    [
        {"damage": [("file", 0, 5, "of zeros")]},
        {"lost": [(1, 2, 3)]},
        {"orphaned": [1]},
        {"shortfall": Shortfall(batches=1)},
        {"passed_over": "an earlier start passed over what was missing"},
    ],
    ids=lambda found: next(iter(found)),
)
def test_what_only_a_repair_settles_is_told(metered: Metered, found: dict[str, Any]) -> None:
    assert metered.samples()["amqpstore_needs_repair"] == 0
    report = metered.server.store.recovery_report
    for name, value in found.items():
        setattr(report, name, value)
    assert metered.samples()["amqpstore_needs_repair"] == 1


def test_health_is_what_keeps_clients_away(metered: Metered) -> None:
    def found(**stopping: Any) -> list[str]:
        return health.troubles(metered.source, is_stopping=stopping.get("is_stopping", False))

    assert found() == []
    assert found(is_stopping=True) == ["the broker is stopping"]
    # Consumers are what clears an alarm.
    metered.alarms.is_memory_low = True
    assert found() == []
    assert health.alarms(metered.source) == ["memory"]


def test_the_sizes_of_published_messages_are_counted(metered: Metered) -> None:
    """Alike or not, whether they are routed or not; a size that is a bound belongs to it."""
    reads = (
        # At first, when its parser remembers whole headers: the first and the last are one object.
        [50, 5000, 5000, 50],
        *([50] * 3, [50, 5000, 50], [100, 101, 1000, 101], [1000, 1000], [20_000, 30_000]),
    )
    for queue, has_ids in (("q", False), ("nowhere", False), ("q", True)):
        for sizes in reads:
            ids = [str(number) if has_ids else None for number in range(len(sizes))]
            metered.amqp.send(b"".join(map(published, repeat(queue), sizes, ids)))
    found = metered.samples()
    name = "rabbitmq_message_size_bytes"
    expected = [3 * count for count in (8, 13, 16, 18, 18, 18, 18, 18, 18)]
    bounds = (100, 1000, 10**4, 10**5, 10**6, 10**7, 5 * 10**7, 10**8, "+Inf")
    counts = [found[f"{name}_bucket {bound} amqp091"] for bound in bounds]
    assert counts == expected
    assert found[f"{name}_sum amqp091"] == 3 * sum(map(sum, reads))
    assert found[f"{name}_count amqp091"] == counts[-1]


def published(queue: str, size: int, message_id: str | None) -> bytes:
    method = methods.BasicPublish(exchange="", routing_key=queue)
    return content(1, method, bytes(size), BasicProperties(message_id=message_id), 0, 1)


def test_a_probe_measures_the_delivery_of_a_message(metered: Metered) -> None:
    probes = metered.server.services.statistics.probes
    before = sum(probes.delivery_s.buckets)
    metered.server.queue("probed")
    probes.is_due = True
    metered.client.publish("", "probed", "a", "b")
    metered.client.publish("", "probed", "c")
    assert not probes.is_due
    assert len(probes.waiting) == 1
    metered.client.consume("probed", "p", no_ack=True)
    metered.server.settle()
    assert probes.waiting == {}
    assert sum(probes.delivery_s.buckets) == before + 1


def test_probes_are_few(metered: Metered) -> None:
    probes = metered.server.services.statistics.probes
    for number in range(100):
        metered.server.queue(f"p{number}")
        probes.is_due = True
        metered.client.publish("", f"p{number}", "a")
    assert len(probes.waiting) == 64
