"""Programs that watch RabbitMQ, on this broker: Debian's checks for Nagios, and the fields that
others read.
"""

import json
from collections.abc import Generator

import pika
import pytest

from tests.broker_process import BrokerProcess
from tests.format.document import table
from tests.interop.external_client import need, run
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

NODE = "rabbit@127"
"""The node's name, which the checks derive from the address that they are given."""

FIELDS = {
    # Telegraf, Datadog's agent, the exporter for Prometheus and Terraform's client, together.
    "/overview": "node message_stats.deliver_details.rate "
    "message_stats.deliver_no_ack_details.rate "
    "object_totals.channels object_totals.connections object_totals.consumers "
    "object_totals.exchanges object_totals.queues queue_totals.messages "
    "queue_totals.messages_ready queue_totals.messages_unacknowledged cluster_name "
    "message_stats.publish message_stats.publish_details.rate message_stats.confirm "
    "message_stats.deliver message_stats.deliver_get_details.rate message_stats.ack "
    "message_stats.redeliver message_stats.return_unroutable message_stats.drop_unroutable "
    "message_stats.disk_reads message_stats.disk_writes rabbitmq_version erlang_version listeners",
    "/nodes/rabbit@127": "name running uptime disk_free disk_free_limit disk_free_alarm fd_total "
    "fd_used mem_limit mem_used mem_alarm proc_total proc_used run_queue sockets_total "
    "sockets_used partitions gc_num gc_num_details.rate gc_bytes_reclaimed io_read_avg_time "
    "io_read_bytes io_read_bytes_details.rate io_write_avg_time io_write_bytes "
    "io_write_bytes_details.rate mnesia_disk_tx_count mnesia_ram_tx_count os_pid type "
    "mem_used_details.rate fd_used_details.rate disk_free_details.rate sockets_used_details.rate",
    "/nodes/rabbit@127/memory": "memory.total.rss memory.total.allocated memory.total.erlang "
    "memory.connection_readers memory.queue_procs memory.plugins memory.other_proc memory.binary "
    "memory.code memory.atom memory.msg_index memory.metrics memory.mgmt_db",
    "/queues/%2F/watched": "name vhost durable auto_delete exclusive arguments node state policy "
    "memory consumers consumer_utilisation consumer_capacity messages messages_details.rate "
    "messages_ready messages_ready_details.rate messages_unacknowledged messages_ram "
    "messages_ready_ram messages_unacknowledged_ram messages_persistent message_bytes "
    "message_bytes_ready message_bytes_unacknowledged message_bytes_ram message_bytes_persistent "
    "head_message_timestamp slave_nodes synchronised_slave_nodes garbage_collection reductions "
    "message_stats.ack message_stats.deliver_get_details.rate message_stats.publish "
    "message_stats.publish_details.rate message_stats.redeliver backing_queue_status "
    "type effective_policy_definition message_stats.deliver_details.rate message_stats.get "
    "message_stats.deliver_no_ack_details.rate message_stats.get_no_ack "
    "message_stats.ack_details.rate message_stats.redeliver_details.rate disk_reads disk_writes",
    "/exchanges/%2F/amq.topic": "name type durable message_stats.publish_in "
    "message_stats.publish_in_details.rate message_stats.publish_out",
    "/connections": "name user vhost node state channels recv_oct recv_oct_details.rate send_oct "
    "send_oct_details.rate recv_cnt send_cnt send_pend peer_host peer_port connected_at "
    "client_properties user_provided_name reductions garbage_collection",
    "/channels": "name user vhost node number state confirm transactional consumer_count "
    "messages_unacknowledged messages_unconfirmed messages_uncommitted acks_uncommitted "
    "prefetch_count connection_details.name message_stats.publish garbage_collection",
    "/aliveness-test/%2F": "status",
    "/consumers": "queue.name consumer_tag channel_details.connection_name ack_required "
    "prefetch_count active arguments exclusive",
}
"""The fields that these programs read, by path."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[ManagementClient]:
    directory = tmp_path_factory.mktemp("watched")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    broker.environment["AMQPSTORE_NODE_NAME"] = NODE
    with broker:
        broker.start()
        client = pika.URLParameters(broker.url)
        client.client_properties = {"connection_name": "watched"}
        with pika.BlockingConnection(client) as connection:
            channel = connection.channel()
            channel.queue_declare("watched", durable=True)
            channel.basic_publish("", "watched", b"body", pika.BasicProperties(timestamp=17))
            channel.queue_declare("taken")
            channel.basic_consume("taken", print)
            with ManagementClient(management_url(broker)) as found:
                wait_until(lambda: found.get("/consumers") != [], "the consumer")
                wait_until(
                    lambda: found.get("/overview")["queue_totals"]["messages"] == 1, "the totals"
                )
                yield found


def absent() -> set[str]:
    """Return the fields that say nothing here, by the table of PROTOCOL.md."""
    with open("server/PROTOCOL.md", encoding="utf-8") as file:
        rows = table(file.read(), "Fields of the management API that are not there")
    return {field.strip(" `") for row in rows for field in row.cells["fields"].split(",")}


@pytest.mark.parametrize("path", FIELDS)
def test_what_programs_read_is_there_or_in_the_table_of_what_is_not(
    api: ManagementClient, path: str
) -> None:
    found = api.get(path)
    row = found[0] if isinstance(found, list) else found
    not_there = absent()
    for field in FIELDS[path].split():
        value = row
        for name in field.split("."):
            is_there = isinstance(value, dict) and name in value
            assert is_there or field.partition(".")[0] in not_there, f"{path} has no {field}"
            value = value[name] if is_there else None
    assert json.dumps(row)


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "options", "said"),
    [
        ("aliveness", (), "OK - vhost: /"),
        ("connections", (), "connections=1;"),
        ("objects", (), "OK"),
        ("overview", ("-w", "9,9,9", "-c", "99,99,99"), "messages OK (1)"),
        ("partition", (), "No Partitions"),
        ("queue", ("--queue", "watched", "-w", "9,9,9", "-c", "99,99,99"), "messages OK (1)"),
        ("server", (), "Memory OK"),
        ("watermark", (), "OK"),
    ],
)
def test_debians_checks_for_nagios_are_content(
    api: ManagementClient, check: str, options: tuple[str, ...], said: str
) -> None:
    """The checks look up their password by the realm, and the node by its name; the check of
    shovels asks for one that exists.
    """
    command = need(f"check_rabbitmq_{check}", "apt-get install nagios-plugins-rabbitmq")
    host, _, port = api.url.removeprefix("http://").partition(":")
    login = ("-H", host, "--port", port, "-u", "guest", "-p", "guest")
    assert said in run([command, *login, *options]).stdout.decode()
