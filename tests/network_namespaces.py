"""Hosts with a network of their own on this machine, which can be cut in pieces.

Each host is a network namespace with one address. A router between them, a namespace too, drops or
delays what a cut host sends, or what one sends to another: neither end is told, as with a real
partition.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, Self, TypeAlias

import pytest

from tests.slow_links import INTERFACE, Pace, SlowLinks

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET, for setns(2)."""

_SLOW_TABLE = "77"
"""The routes of packets that take a slow link."""

_LIBC = ctypes.CDLL(None, use_errno=True)


class Host(Protocol):
    """A host that a process runs on."""

    @property
    def address(self) -> str: ...

    def entered(self) -> AbstractContextManager[None]:
        """Let this thread, and the threads and processes that it starts, be on this host."""


class _Loopback:
    address = "127.0.0.1"

    def entered(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


LOOPBACK = _Loopback()
"""The host that is this machine itself."""


def _run(*command: str, stdin: str = "") -> None:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class NetworkHost:
    """One host, with a cable to the router."""

    def __init__(self, name: str, number: int) -> None:
        self.namespace = name
        self.address = f"10.77.{number}.2"
        self.gateway = f"10.77.{number}.1"
        self.interface = f"host{number}"
        """The router's end of the cable."""

    def entered(self) -> AbstractContextManager[None]:
        return _entered(self.namespace)


@contextlib.contextmanager
def _entered(namespace: str) -> Generator[None]:
    with (
        open("/proc/thread-self/ns/net", "rb") as outside,
        open(f"/run/netns/{namespace}", "rb") as inside,
    ):
        _enter(inside.fileno())
        try:
            yield
        finally:
            _enter(outside.fileno())


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


Way: TypeAlias = tuple[NetworkHost, NetworkHost]
"""A way from a sender to a receiver."""


def _slowly(way: Way) -> str:
    """Return a rule for what comes from the sender, and not from the tunnel."""
    return f"iif {way[0].interface} lookup {_SLOW_TABLE}"


class HostNetwork:
    """Hosts and the router between them. Skips the test where namespaces cannot be made."""

    def __init__(self, names: Iterable[str]) -> None:
        prefix = f"amqpstore-{os.getpid()}"
        self._router = f"{prefix}-router"
        self.hosts = {
            name: NetworkHost(f"{prefix}-{name}", number) for number, name in enumerate(names, 1)
        }
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._delete)
                self._slow_links = self._make_router()
                for one in self.hosts.values():
                    self._connect(one)
                stack.pop_all()
        except OSError as error:
            pytest.skip(f"there can be no network of namespaces here: {error}")

    def _make_router(self) -> SlowLinks:
        router = ("ip", "-n", self._router)
        _run("ip", "netns", "add", self._router)
        forwards = ("sysctl", "-qw", "net.ipv4.ip_forward=1")
        _run("ip", "netns", "exec", self._router, *forwards)
        with _entered(self._router):
            links = SlowLinks()
        _run(*router, "link", "set", INTERFACE, "up")
        _run(*router, "route", "add", "default", "dev", INTERFACE, "table", _SLOW_TABLE)
        return links

    def _connect(self, host: NetworkHost) -> None:
        inside = ("ip", "-n", host.namespace)
        router = ("ip", "-n", self._router)
        cable = ("link", "add", host.interface, "type", "veth")
        _run("ip", "netns", "add", host.namespace)
        _run(*router, *cable, "peer", "name", "eth0", "netns", host.namespace)
        _run(*router, "address", "add", f"{host.gateway}/24", "dev", host.interface)
        _run(*router, "link", "set", host.interface, "up")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "route", "add", "default", "via", host.gateway)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hosts and the router; processes that run there keep a network without any
        cable.
        """
        self._slow_links.close()
        self._delete()

    def _delete(self) -> None:
        for name in (*(one.namespace for one in self.hosts.values()), self._router):
            with contextlib.suppress(OSError):
                _run("ip", "netns", "delete", name)

    def cut(self, ways: Iterable[Way]) -> None:
        """Let nothing that goes these ways arrive."""
        self._rules("add", dict.fromkeys(ways, "blackhole"))

    def mend(self, ways: Iterable[Way]) -> None:
        """Undo `cut`."""
        self._rules("delete", dict.fromkeys(ways, "blackhole"))

    def slow_down(self, ways: Collection[Way], pace: Pace) -> None:
        """Let what goes these ways take its time."""
        for sender, receiver in ways:
            self._slow_links.slow_down(sender.address, receiver.address, pace)
        self._rules("add", {way: _slowly(way) for way in ways})

    def speed_up(self, ways: Collection[Way], pace: Pace) -> None:
        """Undo `slow_down`."""
        self._rules("delete", {way: _slowly(way) for way in ways})
        for sender, receiver in ways:
            self._slow_links.speed_up(sender.address, receiver.address, pace)

    def _rules(self, action: str, rules: Mapping[Way, str]) -> None:
        lines = "".join(
            f"rule {action} from {sender.address} to {receiver.address} {rule}\n"
            for (sender, receiver), rule in rules.items()
        )
        _run("ip", "-n", self._router, "-batch", "-", stdin=lines)

    def unplug(self, host: NetworkHost) -> None:
        """Pull a host's cable."""
        _run("ip", "-n", self._router, "link", "set", host.interface, "down")

    def plug_in(self, host: NetworkHost) -> None:
        """Undo `unplug`."""
        _run("ip", "-n", self._router, "link", "set", host.interface, "up")
