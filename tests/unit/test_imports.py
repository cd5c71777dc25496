"""Imports point one way: from the server and the tools to the engine, and little else."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.unit.python_sources import PACKAGES, Sources, imports, parsed, sources

# What is in a package, each above all that is before it: it may import that, and none behind it. On
# one floor are modules that know each other's types.
FLOORS: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "amqpstore": (
        "terms",
        "errors",
        "system",
        "format",
        "catalog",
        "identity",
        "log",
        "queues",
        "options",
        "provenance",
        "evidence",
        "checkpoints",
        "recovery",
        "upkeep",
        ("purges", "prepared", "transaction", "store"),
        "shared",
        "replica",
    ),
    "amqpstore_server": (
        "protocol",
        "cluster",
        "etcd",
        "logs",
        "process",
        "config",
        "broker",
        "plugins",
        "clients",
        "amqp",
        "reports",
        "logins",
        "administration",
        "listening",
        "terms",
        "loop",
        "config_values",
        "statistics",
        "metrics",
        "reloading",
        "management",
        "replication",
        "app",
    ),
    "amqpstore_server.broker": (
        "errors",
        "weak_references",
        "monitoring",
        "rules",
        "rights",
        "messages",
        "exchanges",
        "work",
        "queues",
        "routing",
        "transactions",
        "channels",
        "definitions",
        "vhost",
        "broker",
    ),
    "amqpstore_tools": (
        "client",
        "pika",
        "simulation",
        "testing",
        "offline",
        "administration",
        "cluster",
        "copying",
        "transfer",
        "inspect",
        "check",
        "repair",
        "bench",
        "drill",
        "drill.scenarios",
        "spark.reading",
        "spark.streams",
        "spark",
        "archive",
        "report",
        "compare",
        "verbs",
    ),
}

# Modules that may touch files through `os`: the one door, and four whose docstrings say why.
FILE_MODULES = (
    "amqpstore.system.files",
    "amqpstore.system.ownership",
    "amqpstore.system.datasyncs",
    "amqpstore.catalog.catalog",
    "amqpstore.store",
)
# How properties of messages are kept, whatever protocol they came through.
MESSAGE_MODULES = tuple(
    f"amqpstore_server.protocol.{name}" for name in ("bounds", "content", "field_table")
)
# A client of etcd knows what it is asked for, and nothing else of the broker.
ETCD_MODULES = ("amqpstore_server.etcd", "amqpstore_server.cluster")
# Who may import it: nothing that a single node loads, but for the check of an endpoint.
ETCD_USERS = (
    "amqpstore_server.etcd",
    "amqpstore_server.replication",
    "amqpstore_tools.cluster",
)
ETCD_SETTINGS_USER = "amqpstore_server.config.cluster"
# Parts of the broker with tasks of their own, loaded where the configuration asks for them.
OPTIONAL_ROOMS = ("amqpstore_server.management", "amqpstore_server.replication")
# Rooms with tasks, and the one door of another room: only there is trio.
TRIO_ROOMS = (
    *OPTIONAL_ROOMS,
    "amqpstore_server.process",
    "amqpstore_server.logins",
    "amqpstore_server.administration.admin_socket",
    "amqpstore_server.listening",
    "amqpstore_server.loop",
)
OFFLINE_MODULES = (
    *MESSAGE_MODULES,
    "amqpstore_server.protocol.errors",
    "amqpstore_server.reports.message_trail",
    "amqpstore_server.reports.reports",
)

# The configuration, for tools that do not run the broker.
CONFIG_MODULES = ("amqpstore_server.config",)

CONFIG_VERBS = ("amqpstore_tools.verbs.config", "amqpstore_tools.verbs.cluster")

FILE_LIBRARIES = ("pathlib", "shutil", "io", "tempfile", "mmap", "fcntl", "glob")


def test_no_import_points_the_wrong_way() -> None:
    assert list(violations(sources())) == []


def test_every_package_was_read() -> None:
    found = sources()
    assert {name.partition(".")[0] for name in found} == set(PACKAGES)
    assert {
        "amqpstore.store",
        "amqpstore_server.broker.queues.queue",
        "amqpstore_server.protocol.methods",
    } <= found.keys()


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("amqpstore.bad", "import amqpstore_server"),
        ("amqpstore.bad", "from amqpstore_server.broker import queue"),
        ("amqpstore.bad", "import amqpstore_tools.bench"),
        ("amqpstore.bad", "import trio"),
        ("amqpstore.bad", "from trio import sleep"),
        ("amqpstore.bad", "import socket"),
        ("amqpstore.bad", "import asyncio"),
        ("amqpstore.bad", "import os\nos.remove('x')"),
        ("amqpstore.bad", "import os as system\nsystem.remove('x')"),
        ("amqpstore.bad", "from os import remove"),
        ("amqpstore.bad", "open('x')"),
        ("amqpstore.bad", "from pathlib import Path"),
        ("amqpstore.bad", "import io"),
        ("amqpstore.bad", "from io import BytesIO\nimport io\nio.open('x')"),
        ("amqpstore.bad", "from io import BytesIO, FileIO"),
        ("amqpstore.bad", "def f():\n    import amqpstore_server"),
        ("amqpstore.bad", "if TYPE_CHECKING:\n    from amqpstore_server import app"),
        ("amqpstore.bad", "import importlib\nimportlib.import_module('amqpstore_server.app')"),
        ("amqpstore.bad", "__import__('amqpstore_server')"),
        ("amqpstore_server.bad", "import amqpstore_tools"),
        ("amqpstore_server.bad", "from amqpstore_tools.bench import wire"),
        ("amqpstore_server.amqp.bad", "import trio"),
        ("amqpstore_server.amqp.bad", "from trio.abc import Stream"),
        ("amqpstore_server.broker.bad", "from amqpstore_server.management import door"),
        ("amqpstore_server.loop.socket_connection", "from amqpstore_server.management import door"),
        ("amqpstore_server.administration.bad", "import trio"),
        ("amqpstore_server.protocol.bad", "import trio"),
        ("amqpstore_server.protocol.bad", "import socket"),
        ("amqpstore_server.protocol.bad", "import time"),
        ("amqpstore_server.protocol.bad", "from time import monotonic"),
        ("amqpstore_server.protocol.bad", "import random"),
        ("amqpstore_server.protocol.bad", "import amqpstore"),
        ("amqpstore_server.protocol.bad", "from amqpstore import Store"),
        ("amqpstore_server.protocol.bad", "from amqpstore_server.broker import queue"),
        ("amqpstore_server.protocol.bad", "from amqpstore_server import broker"),
        ("amqpstore_server.protocol.bad", "from .. import broker"),
        ("amqpstore_server.protocol.bad", "from ..broker.queue import Queue"),
        ("amqpstore_server.cluster.bad", "import time"),
        ("amqpstore_server.cluster.bad", "import random"),
        ("amqpstore_server.cluster.bad", "from amqpstore import Store"),
        ("amqpstore_server.etcd.bad", "import trio"),
        ("amqpstore_server.etcd.bad", "from amqpstore import Store"),
        ("amqpstore_server.etcd.bad", "from amqpstore_server.config.config import Config"),
        ("amqpstore_server.app", "from amqpstore_server.etcd.client import EtcdClient"),
        ("amqpstore_server.config.cluster", "from amqpstore_server.etcd.client import EtcdClient"),
        ("amqpstore_server.app", "import urllib3"),
        ("amqpstore_server.cluster.bad", "from amqpstore_server.etcd.client import EtcdClient"),
        ("amqpstore_server.amqp.bad", "from amqpstore_server.replication import settings"),
        ("amqpstore_server.broker.bad", "import trio"),
        ("amqpstore_server.broker.bad", "import socket"),
        ("amqpstore_server.broker.bad", "import time"),
        ("amqpstore_server.broker.bad", "import random"),
        ("amqpstore_server.broker.bad", "from amqpstore_server.protocol import frames"),
        ("amqpstore_server.broker.bad", "from amqpstore_server.amqp import channel"),
        ("amqpstore_server.broker.exchanges.bad", "from amqpstore_server.protocol.frames import x"),
        (
            "amqpstore_server.broker.exchanges.bad",
            "if TYPE_CHECKING:\n    from amqpstore_server.broker.queues.queue import Queue",
        ),
        (
            "amqpstore_server.broker.queues.bad",
            "from amqpstore_server.broker.channels.channel import Channel",
        ),
        ("amqpstore_server.broker.errors", "from amqpstore_server.broker import vhost"),
        (
            "amqpstore_server.broker.routing.routing",
            "from amqpstore_server.broker import unheard_of",
        ),
        ("amqpstore_tools.bad", "import amqpstore_server"),
        ("amqpstore_tools.bad", "from amqpstore_server.app import run"),
        ("amqpstore_tools.offline.bad", "from amqpstore_server.broker.queues.queue import Queue"),
        ("amqpstore_tools.offline.bad", "import amqpstore_server.app"),
        ("amqpstore_tools.offline.bad", "from amqpstore_tools.check import check"),
        ("amqpstore_tools.check.bad", "def f():\n    from amqpstore_tools.spark import cluster"),
        ("amqpstore_tools.drill.bad", "from amqpstore_tools.drill.scenarios import SCENARIOS"),
        ("amqpstore_tools.verbs.bad", "from amqpstore_tools import __main__"),
        ("amqpstore_tools.verbs.bad", "from amqpstore_server.config.config import KEYS"),
        ("amqpstore_tools.verbs.config", "from amqpstore_server.app import run"),
        ("amqpstore_tools.bench.bad", "import amqpstore_server"),
        ("amqpstore_tools.bench.bad", "from amqpstore import Store"),
        ("amqpstore_tools.bench.serve", "import amqpstore_server"),
        ("amqpstore_tools.pika.bad", "import amqpstore"),
        ("amqpstore_tools.pika.bad", "from amqpstore_server.app import run"),
        ("amqpstore_tools.pika.bad", "from amqpstore_tools.bench import wire"),
    ],
)
def test_a_wrong_import_is_found(module: str, statement: str) -> None:
    found = list(violations({module: statement}))
    assert found
    assert found[0].startswith(f"{module} ")


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("amqpstore.good", "import os\nos.path.join('a', 'b')\nos.getpid()"),
        ("amqpstore.good", "from os import path\nfrom os.path import join"),
        ("amqpstore.good", "import amqpstore.system.files\nfrom amqpstore.store import Store"),
        ("amqpstore.good", "import time, struct, lmdb"),
        ("amqpstore.good", "self.open('x')"),
        ("amqpstore.good", "from io import BytesIO"),
        ("amqpstore.system.files", "import os, fcntl\nos.remove('x')"),
        ("amqpstore_server.good", "import trio, socket, time\nfrom amqpstore import Store"),
        ("amqpstore_server.management.resources.good", "import trio"),
        ("amqpstore_server.app", "from amqpstore_server.management.door import ManagementDoor"),
        (
            "amqpstore_server.amqp.good",
            "from amqpstore import Store\nfrom amqpstore_server.protocol import frames",
        ),
        (
            "amqpstore_server.protocol.good",
            "from amqpstore_server.protocol import frames\nfrom . import spec",
        ),
        (
            "amqpstore_server.broker.good",
            "import amqpstore\nfrom amqpstore_server.broker import queue",
        ),
        (
            "amqpstore_server.broker.good",
            "from amqpstore_server.protocol.content import BasicProperties",
        ),
        (
            "amqpstore_server.etcd.good",
            "import time, urllib3\nfrom amqpstore_server.cluster.keys import View",
        ),
        (
            "amqpstore_server.replication.good",
            "from amqpstore_server.etcd.client import EtcdClient\nfrom amqpstore import Store",
        ),
        ("amqpstore_server.broker.good", "from datetime import timedelta"),
        ("amqpstore_tools.pika.good", "import pika\nfrom amqpstore_tools.pika.xid import Xid"),
        ("amqpstore_tools.good", "from amqpstore import Store\nimport trio"),
        ("amqpstore_tools.verbs.serve", "from amqpstore_server.app import run"),
        ("amqpstore_tools.verbs.config", "from amqpstore_server.config.config import KEYS"),
        (
            "amqpstore_tools.offline.good",
            "from amqpstore_server.protocol.content import decode_properties",
        ),
        ("amqpstore_tools.testing.good", "from amqpstore_server.app import App"),
        (
            "amqpstore_tools.bench.good",
            "import socket, time, random\nfrom amqpstore_tools.bench import wire",
        ),
    ],
)
def test_a_right_import_is_no_finding(module: str, statement: str) -> None:
    assert list(violations({module: statement})) == []


def test_a_module_on_disk_is_read_under_its_name(tmp_path: Path) -> None:
    package = tmp_path / "server" / "amqpstore_server" / "protocol"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import bad\n")
    (package / "bad.py").write_text("import random\n")
    found = sources(tmp_path)
    assert found.keys() == {"amqpstore_server.protocol.__init__", "amqpstore_server.protocol.bad"}
    assert list(violations(found)) == ["amqpstore_server.protocol.bad imports random"]


def violations(modules: Sources) -> Iterator[str]:
    """One line for each import, and each use of files, that the rules forbid."""
    for module, text in modules.items():
        for imported in sorted(imports(module, text)):
            if is_forbidden(module, imported):
                yield f"{module} imports {imported}"
        if is_within(module, "amqpstore") and module not in FILE_MODULES:
            yield from file_uses(module, text)


def sans_io_room(module: str) -> str:
    """Return the room that a module is in, if what that decides is a function of what it is told,
    also of the time.
    """
    rooms = ("amqpstore_server.protocol", "amqpstore_server.cluster")
    return next((room for room in rooms if is_within(module, room)), "")


def is_forbidden(module: str, imported: str) -> bool:
    """Tell whether this arrow is forbidden."""

    def among(*names: str) -> bool:
        return any(is_within(imported, name) for name in names)

    if is_upward(module, imported) or is_forbidden_around_etcd(module, imported):
        return True
    if is_within(module, "amqpstore"):
        return among("amqpstore_server", "amqpstore_tools", "trio", "socket", "asyncio")
    if is_within(module, "amqpstore_tools"):
        if is_within(module, "amqpstore_tools.bench"):
            return among("amqpstore_server", "amqpstore")
        if is_within(module, "amqpstore_tools.pika"):
            ours = among("amqpstore_tools") and not among("amqpstore_tools.pika")
            return (ours and imported != "amqpstore_tools") or among(
                "amqpstore", "amqpstore_server"
            )
        runs_it = module == "amqpstore_tools.verbs.serve" or any(
            is_within(module, f"amqpstore_tools.{name}")
            for name in ("testing", "administration", "cluster")
        )
        # A message's properties are shown, and nothing else of the broker is known.
        shows_it = is_within(module, "amqpstore_tools.offline") and among(*OFFLINE_MODULES)
        reads_it = module in CONFIG_VERBS and among(*CONFIG_MODULES)
        begins_it = module == "amqpstore_tools.__main__" and among(
            "amqpstore_server.process.signals"
        )
        may = runs_it or shows_it or reads_it or begins_it
        return among("amqpstore_server") and not may
    if among("amqpstore_tools", "asyncio"):
        return True
    own = next((room for room in OPTIONAL_ROOMS if is_within(module, room)), "")
    if among("trio") and module.count(".") > 1 and not is_within_any(module, TRIO_ROOMS):
        return True
    if among(*(room for room in OPTIONAL_ROOMS if room != own)):
        return module != "amqpstore_server.app"
    if room := sans_io_room(module):
        ours = among("amqpstore_server") and not among(room) and imported != "amqpstore_server"
        return ours or among("socket", "time", "random", "amqpstore")
    if is_within(module, "amqpstore_server.broker"):
        protocol = among("amqpstore_server.protocol") and not among(*MESSAGE_MODULES)
        return protocol or among("socket", "time", "random", "amqpstore_server.amqp")
    return False


def is_forbidden_around_etcd(module: str, imported: str) -> bool:
    """Tell whether the client of etcd knows too much, or is imported by a single node."""
    if module == ETCD_SETTINGS_USER and is_within(imported, "amqpstore_server.etcd.settings"):
        return False
    if not any(is_within(module, name) for name in ETCD_USERS):
        names = ("amqpstore_server.etcd", "urllib3")
        return any(is_within(imported, name) for name in names)
    if not is_within(module, "amqpstore_server.etcd"):
        return False
    ours = is_within(imported, "amqpstore_server") and imported != "amqpstore_server"
    is_known = any(is_within(imported, name) for name in ETCD_MODULES)
    return (ours and not is_known) or is_within(imported, "amqpstore")


def is_upward(module: str, imported: str) -> bool:
    """Tell whether what is imported is on a higher floor of the same package."""
    return any(
        floor_of(package, imported) > floor_of(package, module)
        for package in FLOORS
        if is_within(module, package) and is_within(imported, package)
    )


def floor_of(package: str, module: str) -> int:
    """Return how high a module is; above what is on no floor, there is nothing but that."""
    if module == package:
        return -1
    floors = FLOORS[package]
    inside = module.removeprefix(f"{package}.")
    within = [
        (len(name), floor)
        for floor, names in enumerate(floors)
        for name in ((names,) if isinstance(names, str) else names)
        if is_within(inside, name)
    ]
    return max(within)[1] if within else len(floors)


def is_within_any(module: str, packages: Iterable[str]) -> bool:
    """Tell whether a module is one of some packages or in one."""
    return any(is_within(module, package) for package in packages)


def is_within(module: str, package: str) -> bool:
    """Tell whether a module is a package or in it."""
    return module == package or module.startswith(f"{package}.")


def _below(package: str, names: set[str]) -> set[str]:
    return {name for name in names if name.startswith(f"{package}.")}


def file_uses(module: str, text: str) -> Iterator[str]:
    """Yield where a module accesses files other than through `amqpstore.system.files`."""
    tree = parsed(text)
    system = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "os"
    }
    harmless = ("path", "getpid", "fspath", "PathLike")
    modules = set(imports(module, text))
    if "import io" not in text and {"io.BytesIO"} == _below("io", modules):
        modules -= {"io", "io.BytesIO"}  # memory, and no file
    for imported in sorted(modules):
        first, _, rest = imported.partition(".")
        if first in FILE_LIBRARIES or (
            first == "os" and rest and rest.partition(".")[0] not in harmless
        ):
            yield f"{module} imports {imported}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in system and node.attr not in harmless:
                yield f"{module} uses os.{node.attr}"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "open"
        ):
            yield f"{module} calls open"
