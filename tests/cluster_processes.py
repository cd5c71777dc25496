"""A group of members as real processes, with a real etcd: what an operator would run."""

import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Self

import pika
import pika.exceptions

from amqpstore.replica import Membership, create_follower
from amqpstore_server.cluster.keys import GROUP, IN_SYNC, SECRET, EtcdTransaction, Put, View
from amqpstore_server.cluster.keys import member_key as key_of
from amqpstore_server.etcd.client import EtcdClient
from tests.broker_process import REPOSITORY
from tests.etcd_process import PATIENT_S, EtcdCluster
from tests.network_namespaces import LOOPBACK, Host
from tests.waiting import wait_until

_LOGIN = re.compile(r"user (\w+) added, password (\S+)")


def listening_port() -> int:
    """Return a port that no process listens on, and that no connection is given meanwhile: a member
    listens only while it leads.
    """
    while True:
        port = secrets.randbelow(10_000) + 20_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class MemberProcess:
    """One member: its directory, its ports, and between start and end its process."""

    def __init__(
        self, place: str, number: int, etcd: EtcdCluster, host: Host, *, proxy: bool
    ) -> None:
        self.proxy = proxy
        self.host = host
        self.id = f"{number:016x}"
        self.directory = os.path.join(place, f"member-{number}")
        self.log_path = os.path.join(place, f"member-{number}.log")
        self.port, self.replicate = listening_port(), listening_port()
        self.login = pika.PlainCredentials("guest", "guest")
        self.settings: dict[str, str] = {}
        """Environment variables of the process."""
        self.etcd = etcd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.replicate}"

    def create(self, store_id: uuid.UUID, cluster: int) -> None:
        """Make the directory of a new member."""
        create_follower(self.directory, store_id, Membership(self.id, cluster))

    @property
    def environment(self) -> dict[str, str]:
        """The configuration, as variables of the process."""
        etcd = self.etcd.settings
        return {
            "AMQPSTORE_CONFIG": "",
            "AMQPSTORE_CLUSTER_NAME": "test",
            "AMQPSTORE_CLUSTER_ETCD": ",".join(etcd.endpoints),
            "AMQPSTORE_CLUSTER_ETCD_CA": etcd.ca,
            "AMQPSTORE_CLUSTER_ETCD_CERTIFICATE": etcd.certificate,
            "AMQPSTORE_CLUSTER_ETCD_KEY": etcd.key,
            "AMQPSTORE_CLUSTER_ETCD_USER": etcd.user,
            "AMQPSTORE_CLUSTER_ETCD_PASSWORD": etcd.password,
            "AMQPSTORE_CLUSTER_REPLICATE": self.address,
            "AMQPSTORE_CLUSTER_PROXY": str(self.proxy).lower(),
            "AMQPSTORE_MANAGEMENT_LISTEN": "",
            "AMQPSTORE_LEAST_FREE_BYTES": "0",
            **self.settings,
        }

    def start(self) -> None:
        """Start the process; it follows before it does anything else."""
        command = [sys.executable, "-m", "amqpstore_tools", "serve", "--data", self.directory]
        with open(self.log_path, "ab") as log, self.host.entered():
            self._process = subprocess.Popen(
                [*command, "--listen", f"{self.host.address}:{self.port}"],
                cwd=REPOSITORY,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the process as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> int:
        """Stop the process in order. Returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(PATIENT_S)
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended by itself."""
        return self._process.poll() if self._process is not None else None

    @property
    def memory_bytes(self) -> int:
        """The memory of the process, without pages of files."""
        assert self._process is not None
        with open(f"/proc/{self._process.pid}/status", encoding="ascii") as status:
            found = dict(line.split(":", 1) for line in status)
        return int(found["RssAnon"].split()[0]) << 10

    def operate(self, *arguments: str) -> str:
        """Run an action of `amqpstore cluster` as this member's operator. Returns what it says."""
        ran = subprocess.run(
            [
                *[sys.executable, "-m", "amqpstore_tools", "cluster", *arguments],
                *["--data", self.directory],
            ],
            cwd=REPOSITORY,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode in (0, 1), ran.stderr
        return ran.stdout

    def serves(self) -> bool:
        """Whether clients can connect."""
        with contextlib.suppress(OSError):
            socket.create_connection((self.host.address, self.port), 0.2).close()
            return True
        return False

    def parameters(
        self, timeout_s: float = PATIENT_S, heartbeat_s: int | None = None
    ) -> pika.ConnectionParameters:
        """Return the parameters with which clients connect."""
        return pika.ConnectionParameters(
            self.host.address,
            self.port,
            credentials=self.login,
            socket_timeout=timeout_s,
            stack_timeout=2 * timeout_s,
            blocked_connection_timeout=60,
            heartbeat=heartbeat_s,
        )

    def connect(self) -> pika.BlockingConnection:
        """Connect as clients do: a leader that has just changed may close the first connection."""
        parameters = self.parameters()
        connections: list[pika.BlockingConnection] = []

        def connects() -> bool:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connections.append(pika.BlockingConnection(parameters))
            return bool(connections)

        wait_until(connects, self.log)
        return connections[0]

    def log(self) -> str:
        if not os.path.exists(self.log_path):
            return f"--- {self.id} was never started"
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return f"--- {self.id}\n{log.read()[-5000:]}"


class GroupProcesses:
    """An etcd, and members, the first of which is in the list from the beginning.

    Args: proxy, whether followers take clients: otherwise a member that accepts clients leads.
    hosts, etcd_hosts: where they run; etcd has as many members as hosts. disks: a directory for
    each member. etcd: one that is there already.
    """

    def __init__(
        self,
        place: str,
        size: int,
        min_in_sync: int = 1,
        *,
        proxy: bool = False,
        hosts: Sequence[Host] = (),
        etcd_hosts: Sequence[Host] = (LOOPBACK,),
        disks: Sequence[str] = (),
        etcd: EtcdCluster | None = None,
    ) -> None:
        self._stack = contextlib.ExitStack()
        self.etcd = etcd or self._stack.enter_context(
            EtcdCluster(place, len(etcd_hosts), hosts=etcd_hosts)
        )
        self.client = self._stack.enter_context(
            EtcdClient(self.etcd.settings, "/amqpstore/test/main/", timeout_s=PATIENT_S)
        )
        self.members = [
            MemberProcess(disk, number, self.etcd, host, proxy=proxy)
            for number, (host, disk) in enumerate(
                zip(hosts or [LOOPBACK] * size, disks or [place] * size, strict=True), 1
            )
        ]
        store_id = uuid.uuid4()
        first = self.members[0].id
        puts = [
            Put(GROUP, {"store_id": store_id.hex, "protocol": 1, "min_in_sync": min_in_sync}),
            Put(IN_SYNC, {"members": [first], "term": 0, "request": ""}),
            Put(SECRET, {"secret": secrets.token_hex(32)}),
        ]
        cluster = self.client.read().cluster
        for member in self.members:
            member.create(store_id, cluster)
            puts.append(Put(key_of(member.id), {"sync": True, "replicate": member.address}))
        assert self.client.attempt(EtcdTransaction((), tuple(puts))).outcome == "done"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for one in self.members:
            one.kill()
        self._stack.close()

    def start(self) -> None:
        """Start all members, and return when all of them are in sync."""
        for one in self.members:
            one.start()
        self.wait_until_in_sync(len(self.members))
        if self.members[0].host is not LOOPBACK:
            self.wait(self._knows_login)

    def _knows_login(self) -> bool:
        """Find the login of the administrator, which a leader that is reachable has made: guest may
        log in from loopback only.
        """
        found = _LOGIN.search(self.logs())
        if found is not None:
            for one in self.members:
                one.login = pika.PlainCredentials(found[1], found[2])
        return found is not None

    def view(self) -> View:
        return self.client.read()

    def forget_etcd(self) -> None:
        """Accept whatever etcd answers from now on."""
        self.client = self._stack.enter_context(self.client.without_identity())

    def leader(self) -> MemberProcess | None:
        """The member that etcd names, if it serves clients."""
        row = self.view().leader
        found = next((one for one in self.members if row and one.id == row.value["member"]), None)
        return found if found is not None and found.serves() else None

    def wait_for_leader(self, but: MemberProcess | None = None) -> MemberProcess:
        """Wait for a leader that serves clients."""
        found: list[MemberProcess] = []

        def is_led() -> bool:
            leader = self.leader()
            if leader is not None and leader is not but:
                found.append(leader)
            return bool(found)

        self.wait(is_led)
        return found[0]

    def wait_until_in_sync(self, size: int) -> None:
        self.wait(lambda: len(self.view().in_sync) == size and self.leader() is not None)

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self.logs)

    def logs(self) -> str:
        return "\n".join(one.log() for one in self.members)

    def seconds(self, condition: Callable[[], bool]) -> float:
        """Return how long it takes until a condition holds."""
        began = time.monotonic()
        self.wait(condition)
        return time.monotonic() - began
