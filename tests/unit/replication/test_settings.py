"""Tests of what a member takes from the configuration."""

import socket
import subprocess
import sys

import pytest

from amqpstore_server.config.config import Config
from amqpstore_server.replication.settings import (
    ClusterSettings,
    MemberCertificates,
    cluster_settings,
)

ETCD = ["http://127.0.0.1:2379", "https://[::1]:1"]


def settings_of(**keys: object) -> ClusterSettings:
    config = Config(cluster_name="shop", cluster_etcd=ETCD, **keys)  # type: ignore[arg-type]
    found = cluster_settings(config)
    assert found is not None
    return found


def test_a_broker_without_a_name_of_its_cluster_is_a_single_node() -> None:
    assert cluster_settings(Config()) is None


def test_the_defaults_are_those_of_the_state_machine_but_for_addresses() -> None:
    found = settings_of()
    assert found.prefix == "/amqpstore/shop/main/"
    assert found.etcd.endpoints == tuple(ETCD)
    assert found.replicate == ("0.0.0.0", 5673)
    assert found.timing == type(found.timing)()
    assert found.certificates is None
    assert found.proxy


@pytest.mark.parametrize(
    ("listen", "advertised", "expected"),
    [
        ("0.0.0.0:5", "", f"{socket.gethostname()}:5"),
        ("[::]:5", "", f"{socket.gethostname()}:5"),
        ("[::1]:5", "", "[::1]:5"),
        ("10.0.0.1:5", "", "10.0.0.1:5"),
        ("0.0.0.0:5", "a:6", "a:6"),
    ],
)
def test_a_wildcard_is_advertised_as_this_host(listen: str, advertised: str, expected: str) -> None:
    found = settings_of(
        cluster_replicate=listen,
        cluster_advertise=advertised,
        listen=[listen, "other:1"],
        cluster_advertise_amqp=advertised,
    )
    assert found.advertise == found.amqp == expected


def test_what_is_configured_is_taken_over() -> None:
    settings = settings_of(
        cluster_group="orders",
        cluster_etcd_ca="a",
        cluster_etcd_certificate="b",
        cluster_etcd_key="c",
        cluster_etcd_user="d",
        cluster_etcd_password="hunter2",
        cluster_certificate="e",
        cluster_key="f",
        cluster_ca="g",
        cluster_lease_s=6,
        cluster_ack_timeout_s=1.5,
        cluster_stall_s=4.0,
        cluster_proxy=False,
    )
    assert settings.prefix == "/amqpstore/shop/orders/"
    etcd = settings.etcd
    assert (etcd.ca, etcd.certificate, etcd.key) == ("a", "b", "c")
    assert (etcd.user, etcd.password) == ("d", "hunter2")
    assert settings.certificates == MemberCertificates("e", "f", "g")
    timing = settings.timing
    assert (timing.lease_s, timing.keep_alive_s) == (6, 2)
    assert (timing.ack_timeout_s, timing.unfit_s) == (1.5, 4.0)
    assert not settings.proxy
    assert "hunter2" not in repr(settings)


def test_a_single_node_loads_nothing_of_it() -> None:
    """A single node loads neither the client of etcd nor what replicates."""
    code = (
        "import sys, amqpstore_server.app, amqpstore_server.config.sources as sources\n"
        "sources.ConfigSources(path='').load()\n"
        "print([name for name in sys.modules if 'etcd' in name or 'replication' in name"
        " or name.startswith(('amqpstore_server.cluster', 'amqpstore.replica'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
