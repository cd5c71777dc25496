"""The process that listens on a port, and what it uses."""

import os
import socket

import pytest

from amqpstore_tools.bench.server_process import ServerProcess
from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError


def address(port: int, host: str = "127.0.0.1") -> Address:
    return Address(host, port, "guest", "guest", "/")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_listens_on_a_port_is_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        found = ServerProcess.find(address(port, host))
        assert found == ServerProcess(os.getpid())
        assert ServerProcess.find(address(port, "192.0.2.1")) is None
    assert ServerProcess.find(address(port, host)) is None


def test_a_process_may_be_given() -> None:
    assert ServerProcess.find(address(1), os.getpid()) == ServerProcess(os.getpid())
    with pytest.raises(CommandLineError, match="no process"):
        ServerProcess.find(address(1), 2**30)


def test_cpu_time_and_memory_are_those_of_the_process() -> None:
    process = ServerProcess(os.getpid())
    used = sum(os.times()[:2])
    assert abs(process.cpu_s() - used) < 0.5
    assert process.rss_bytes() > 1 << 20
    gone = ServerProcess(2**30)
    assert (gone.cpu_s(), gone.rss_bytes()) == (0.0, 0)
