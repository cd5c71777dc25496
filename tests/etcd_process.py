"""Real etcd processes, started, killed and stopped by tests."""

import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Sequence
from typing import Any, Self

import urllib3

from amqpstore_server.etcd.settings import EtcdSettings
from tests.interop.external_client import need
from tests.network_namespaces import LOOPBACK, Host
from tests.waiting import wait_until

START_TRIES = 3
PATIENT_S = 20.0
"""Time for an answer that must come, on a machine that does other things as well."""
ALONE = ("--heartbeat-interval", "20", "--election-timeout", "200")
"""A member without others elects itself sooner so, and grants leases of a second."""
INSTALL = "apt-get install etcd-server, and then `systemctl disable --now etcd`"


def free_port() -> int:
    """Return a port that no process listens on, and that no connection gets meanwhile: the kernel
    gives connections ports from 32,768 on.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class EtcdProcess:
    """One member of an etcd. Its ports and its data outlive the process."""

    def __init__(
        self, directory: str, name: str, arguments: Sequence[str], scheme: str, host: Host
    ) -> None:
        self.name = name
        self.host = host
        self.directory = os.path.join(directory, name)
        self.client_port, self.peer_port = free_port(), free_port()
        self._scheme = scheme
        self.peers: list[EtcdProcess] = [self]
        self._program = need("etcd", INSTALL)
        self._arguments = list(arguments)
        self._log_path = os.path.join(directory, f"{name}.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.host.address}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.host.address}:{self.peer_port}"

    def begin(self) -> None:
        """Start the process, and do not wait until it answers."""
        command = [
            *[self._program, "--name", self.name, "--data-dir", self.directory],
            *["--listen-client-urls", self.url, "--advertise-client-urls", self.url],
            *["--listen-peer-urls", self.peer_url],
            *["--initial-advertise-peer-urls", self.peer_url],
            "--initial-cluster",
            ",".join(f"{one.name}={one.peer_url}" for one in self.peers),
            *["--logger", "zap", "--log-level", "warn"],
            *self._arguments,
        ]
        with open(self._log_path, "ab") as log, self.host.entered():
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """End the process as a crash would."""
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process: its sockets still accept, and nothing answers."""
        self._signal(signal.SIGSTOP)
        if self._process is not None:
            # Until all its threads have stopped it still answers.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def log(self) -> str:
        with open(self._log_path, "rb") as log:
            return log.read().decode(errors="replace")[-3000:]


class EtcdCluster:
    """One member or several, each with ports of its own, and each on a host of its own if there
    are that many.
    """

    def __init__(
        self,
        directory: str,
        size: int = 1,
        arguments: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        hosts: Sequence[Host] = (),
    ) -> None:
        if size == 1:
            arguments = (*ALONE, *arguments)
        self._pools = urllib3.PoolManager(ssl_context=tls, retries=False)
        for attempt in range(START_TRIES):
            place = os.path.join(directory, f"etcd-{attempt}")
            os.makedirs(place)
            self.members = [
                EtcdProcess(
                    place,
                    f"member-{number}",
                    arguments,
                    "https" if tls else "http",
                    hosts[number] if hosts else LOOPBACK,
                )
                for number in range(size)
            ]
            for member in self.members:
                member.peers = self.members
            try:
                self.start()
            except AssertionError:
                # Another process took one of the ports meanwhile.
                self.close()
                if attempt == START_TRIES - 1:
                    raise
                shutil.rmtree(place)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(one.url for one in self.members)

    @property
    def settings(self) -> EtcdSettings:
        return EtcdSettings(self.urls)

    def start(self) -> None:
        """Start all members that do not run, and return when all of them answer."""
        for one in self.members:
            if not one.is_running:
                one.begin()
        for one in self.members:
            self.wait_for(one)

    def wait_for(self, member: EtcdProcess) -> None:
        """Return when a member answers linearizable reads."""
        wait_until(
            lambda: member.has_ended() or self._is_healthy(member), lambda: f"etcd: {member.log()}"
        )
        assert not member.has_ended(), member.log()

    def kill(self) -> None:
        """End all members as a power failure would."""
        for one in self.members:
            one.kill()

    def close(self) -> None:
        self.kill()
        self._pools.clear()

    def leader(self) -> EtcdProcess:
        """Return the member that leads now."""
        for one in self.members:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                said = self.post("/v3/maintenance/status", {}, one, timeout_s=1.0)
                if said.get("leader") == said["header"]["member_id"]:
                    return one
        raise AssertionError("etcd has no leader")

    def post(
        self,
        path: str,
        body: object,
        member: EtcdProcess | None = None,
        timeout_s: float = PATIENT_S,
    ) -> Any:
        """Ask a member, the first one if none is named, as an operator would."""
        url = (member or self.members[0]).url + path
        answer = self._pools.request("POST", url, json=body, timeout=timeout_s)
        assert answer.status == 200, answer.data
        return answer.json()

    def _is_healthy(self, member: EtcdProcess) -> bool:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            answer = self._pools.request("GET", f"{member.url}/health", timeout=1.0)
            return bool(answer.status == 200 and answer.json()["health"] == "true")
        return False
