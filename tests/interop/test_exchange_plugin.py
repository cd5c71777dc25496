"""An exchange type of another package: installed, declared, routed through, there after a restart.

The package is the one that the documentation of `amqpstore_server.plugins` shows.
"""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest

import amqpstore_server.plugins
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import channel_closed_with, connect, drain

DOCUMENTED = [
    textwrap.dedent(block)
    for block in re.findall(r"::\n\n((?: {4}.*\n|\n)+)", amqpstore_server.plugins.__doc__ or "")
]


def install(site: Path, package: str, code: str, entry_points: dict[str, dict[str, str]]) -> None:
    """An installed plug-in: a module, and the metadata that says what it is for."""
    module = package.replace("-", "_")
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    with (metadata / "entry_points.txt").open("w") as file:
        for group, entries in entry_points.items():
            file.write(f"[{group}]\n")
            file.writelines(f"{name} = {value}\n" for name, value in entries.items())


@pytest.fixture
def broker_with_plugins(stopped_broker: BrokerProcess, tmp_path: Path) -> BrokerProcess:
    """A running broker: in its environment are the documented type, and one that is broken."""
    code, settings = DOCUMENTED
    entry_points = tomllib.loads(settings)["project"]["entry-points"]
    (group,) = entry_points
    install(tmp_path / "site", "my-package", code, entry_points)
    broken = {group: {"x-broken": "broken_package:Exchange"}}
    install(tmp_path / "site", "broken-package", "raise RuntimeError('not today')", broken)
    stopped_broker.environment["PYTHONPATH"] = str(tmp_path / "site")
    stopped_broker.start()
    return stopped_broker


def test_a_type_of_an_installed_package_is_declared_and_routes(
    broker_with_plugins: BrokerProcess, name: str
) -> None:
    """C19, C20."""
    with connect(broker_with_plugins.url) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "x-length", durable=True)
        for length in ("3", "5"):
            channel.queue_declare(f"{name}.{length}", durable=True)
            channel.queue_bind(f"{name}.{length}", name, length)
        for key in ("abc", "abcde", "ab", ""):
            channel.basic_publish(name, key, key.encode())
        assert [one.body for one in drain(channel, f"{name}.3")] == [b"abc"]
        assert [one.body for one in drain(channel, f"{name}.5")] == [b"abcde"]
        with channel_closed_with(406):
            channel.queue_bind(f"{name}.3", name, "three")

    broker_with_plugins.restart()
    with connect(broker_with_plugins.url) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "x-length", durable=True)
        channel.basic_publish(name, "xyz", b"after the restart")
        assert [one.body for one in drain(channel, f"{name}.3")] == [b"after the restart"]
    assert broker_with_plugins.terminate() == 0


def test_a_broken_package_is_logged_and_the_broker_starts(
    broker_with_plugins: BrokerProcess,
) -> None:
    lines = [
        line
        for line in broker_with_plugins.stderr.splitlines()
        if "exchange type not loaded" in line
    ]
    assert len(lines) == 1
    for part in ("level=error", "x-broken", "broken-package", "not today"):
        assert part in lines[0]
    assert broker_with_plugins.terminate() == 0
