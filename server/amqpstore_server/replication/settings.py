"""The configuration of the cluster, in the form in which the code that acts on it needs it."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from dataclasses import dataclass

from amqpstore_server.cluster.timing import Timing
from amqpstore_server.config.checks import host_and_port
from amqpstore_server.config.config import Config
from amqpstore_server.etcd.settings import EtcdSettings


@dataclass(frozen=True)
class MemberCertificates:
    """PEM files with which members prove to each other who they are; `key` may be empty if it is in
    the certificate's file.
    """

    certificate: str
    key: str
    ca: str


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of a broker as a member of a group.

    `cluster` and `group` say where in etcd its keys are. `replicate` is the address to listen on,
    `advertise` how others reach it, and `amqp` how clients do: HOST:PORT, or [IPV6]:PORT.
    `certificates` is None where members prove instead that they know the group's secret. `proxy`
    tells whether a follower takes clients.
    """

    cluster: str
    group: str
    etcd: EtcdSettings
    replicate: tuple[str, int]
    advertise: str
    amqp: str
    certificates: MemberCertificates | None
    timing: Timing
    proxy: bool

    @property
    def prefix(self) -> str:
        """The prefix of the group's keys in etcd."""
        return f"/amqpstore/{self.cluster}/{self.group}/"


def cluster_settings(config: Config) -> ClusterSettings | None:
    """Return the settings of a member; None for a single node."""
    if not config.cluster_name:
        return None
    certificates = MemberCertificates(
        config.cluster_certificate, config.cluster_key, config.cluster_ca
    )
    return ClusterSettings(
        cluster=config.cluster_name,
        group=config.cluster_group,
        etcd=EtcdSettings(
            tuple(config.cluster_etcd),
            config.cluster_etcd_ca,
            config.cluster_etcd_certificate,
            config.cluster_etcd_key,
            config.cluster_etcd_user,
            config.cluster_etcd_password,
        ),
        replicate=host_and_port(config.cluster_replicate),
        advertise=config.cluster_advertise or _reachable(config.cluster_replicate),
        amqp=config.cluster_advertise_amqp or _reachable(config.listen[0]),
        certificates=certificates if certificates.certificate else None,
        timing=Timing(
            lease_s=config.cluster_lease_s,
            keep_alive_s=config.cluster_lease_s / 3,
            ack_timeout_s=config.cluster_ack_timeout_s,
            unfit_s=config.cluster_stall_s,
        ),
        proxy=config.cluster_proxy,
    )


def _reachable(listen: str) -> str:
    """Return an address with this host's name in place of a wildcard."""
    host, port = host_and_port(listen)
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return f"{socket.gethostname()}:{port}"
    return listen
