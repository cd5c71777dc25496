"""An etcd and three members of a group, as processes of a drill, all on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.client.errors import ConnectError, PeerError
from amqpstore_tools.cluster.founding import found
from amqpstore_tools.cluster.group import GroupKeys, local_group
from amqpstore_tools.cluster.joining import join
from amqpstore_tools.cluster.leadership import leader_of
from amqpstore_tools.drill.broker import BrokerEndedError
from amqpstore_tools.drill.run import LeftOutError
from amqpstore_tools.offline.exits import ToolError

SIZE = 3
_NAME = "drill"
_PATIENCE_S = 90.0
_LOOK_S = 0.02
_HOST = "127.0.0.1"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class _Process:
    """A process with a log, which may be paused, killed and started again."""

    def __init__(self, log_path: str) -> None:
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self, command: list[str]) -> None:
        """Start it."""
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own command)
                command,
                cwd=_ROOT,
                env={**os.environ, "AMQPSTORE_MANAGEMENT_LISTEN": ""},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def send(self, number: int) -> None:
        """Send a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> int | None:
        """End it with a signal. Returns its exit code if it had ended by itself before."""
        process, self._process = self._process, None
        if process is None:
            return None
        code = process.poll()
        if code is None:
            process.send_signal(number)
            # A paused process would not act on the signal.
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return -number
        return code

    def log_tail(self) -> str:
        """Return the end of its log."""
        with open(self._log_path, encoding="utf-8", errors="backslashreplace") as log:
            return log.read()[-1000:]


class DrilledMember(_Process):
    """One member: its directory, its ports, and `amqpstore serve` on them."""

    def __init__(self, directory: str, etcd: str) -> None:
        super().__init__(f"{directory}.log")
        self.directory = directory
        self.address = Address(_HOST, _free_port(), "guest", "guest", "/")
        self._etcd = etcd
        self._replicate = f"{_HOST}:{_free_port()}"
        self.keys = self._open_keys()

    def _open_keys(self) -> GroupKeys:
        return local_group(_NAME, self._etcd, self._replicate, str(self.address))

    def forget_etcd(self) -> None:
        """Compare what etcd answers from now on with nothing that it answered before."""
        self.keys.close()
        self.keys = self._open_keys()

    def start(self) -> None:
        """Start its broker, which follows before it does anything else."""
        command = [sys.executable, "-P", "-m", "amqpstore_tools", "serve", "--config", ""]
        command += ["--data", self.directory, "--listen", str(self.address)]
        command += ["--cluster-name", _NAME, "--cluster-etcd", self._etcd]
        self.begin([*command, "--cluster-replicate", self._replicate])

    def restart(self) -> None:
        """Start it again, if it does not run."""
        if not self.is_running:
            self.end()
            self.start()

    def serves(self) -> bool:
        """Tell whether clients can log in."""
        with contextlib.suppress(ConnectError, PeerError, OSError):
            Connection(self.address, 1.0).close()
            return True
        return False


class DrilledGroup:
    """The processes of one drill. Raises: LeftOutError, if there is no etcd on this machine."""

    def __init__(self, directory: str) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise LeftOutError(
                "there is no etcd on this machine: `apt-get install etcd-server`, then `systemctl "
                "disable --now etcd`"
            )
        os.makedirs(directory)
        self._etcd = _Process(os.path.join(directory, "etcd.log"))
        self.etcd_directory = os.path.join(directory, "etcd")
        client, peer = (f"http://{_HOST}:{_free_port()}" for _ in range(2))
        self._etcd_command = [
            *[program, "--name", "drill", "--data-dir", self.etcd_directory],
            *["--listen-client-urls", client, "--advertise-client-urls", client],
            *["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer],
            *["--initial-cluster", f"drill={peer}"],
        ]
        self._etcd.begin(self._etcd_command)
        self.members = [
            DrilledMember(os.path.join(directory, name), client) for name in "abc"[:SIZE]
        ]
        self._ids: dict[str, DrilledMember] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for one in self.members:
            one.end()
            one.keys.close()
        self._etcd.end()

    @property
    def keys(self) -> GroupKeys:
        """The group's keys in etcd."""
        return self.members[0].keys

    def end_etcd(self) -> None:
        """Kill etcd."""
        self._etcd.end()

    def start_etcd(self) -> None:
        """Start etcd again, and take what it holds for right, whatever it held before."""
        self._etcd.begin(self._etcd_command)
        for one in self.members:
            one.forget_etcd()
        self._wait("etcd does not answer", self._answers)

    def found(self) -> None:
        """Make the first member a group, and have the others join it. Raises: BrokerEndedError."""
        self._wait("etcd does not answer", self._answers)
        for number, one in enumerate(self.members):
            if number == 0:
                name = found(one.keys, one.directory).member
            else:
                name = join(one.keys, one.directory, is_observer=False).member
            self._ids[name] = one
            one.start()
            self.wait_until_in_sync(number + 1)

    def _answers(self) -> bool:
        return self.keys.view().revision > 0

    def leader(self) -> DrilledMember | None:
        """Return the member that leads, if clients can log in there."""
        found = self._ids.get(leader_of(self.keys.view()))
        return found if found is not None and found.is_running and found.serves() else None

    def wait_for_leader(self, but: DrilledMember | None = None) -> DrilledMember:
        """Return who leads, once it is not this one. Raises: BrokerEndedError."""
        leading: list[DrilledMember] = []

        def is_led() -> bool:
            leader = self.leader()
            if leader is not None and leader is not but:
                leading.append(leader)
            return bool(leading)

        self._wait("nobody leads", is_led)
        return leading[0]

    def wait_until_in_sync(self, count: int = SIZE) -> None:
        """Return when `count` members are in the list, and one of them leads. Raises:
        BrokerEndedError.
        """
        self._wait(
            f"fewer than {count} are in sync",
            lambda: len(self.keys.view().in_sync) >= count and self.leader() is not None,
        )

    def wait_until_settled(self, least_s: float) -> None:
        """Return when somebody leads; or after at least `least_s`, when each member that runs says
        why it waits. Raises: BrokerEndedError.
        """
        since = time.monotonic()

        def is_settled() -> bool:
            if self.leader() is not None:
                return True
            return time.monotonic() - since > least_s and all(map(self._waits, self._ids))

        self._wait("nobody leads, and not all that run say why", is_settled)

    def _waits(self, name: str) -> bool:
        return not self._ids[name].is_running or "waits" in self.keys.view().shown(name)

    def wait_until_nobody_leads(self) -> None:
        """Return when no key of a leader is left. Raises: BrokerEndedError."""
        self._wait("somebody leads", lambda: self.keys.view().leader is None)

    def _wait(self, otherwise: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not _holds(condition):
            if time.monotonic() > until:
                logs = "\n".join(one.log_tail() for one in (self._etcd, *self._ids.values()))
                raise BrokerEndedError(f"{otherwise} after {_PATIENCE_S:.0f} s: {logs}")
            time.sleep(_LOOK_S)


def _holds(condition: Callable[[], bool]) -> bool:
    """Tell whether something holds; not while etcd does not answer in time."""
    try:
        return condition()
    except ToolError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])
