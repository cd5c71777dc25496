"""Which way imports point: server -> amqpstore, tools -> amqpstore, and little else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("amqpstore", "server", "tools")

# Modules that may touch files through `os`: the one door, and two that say why in their docstring.
FILE_MODULES = ("amqpstore.files", "amqpstore.catalog", "amqpstore.store")
# How properties of messages are kept, whatever protocol they came through.
MESSAGE_MODULES = ("server.protocol.content", "server.protocol.field_table")
OFFLINE_MODULES = (*MESSAGE_MODULES, "server.protocol.errors")

FILE_LIBRARIES = ("pathlib", "shutil", "io", "tempfile", "mmap", "fcntl", "glob")

Sources = dict[str, str]


def test_no_import_points_the_wrong_way() -> None:
    assert list(violations(sources())) == []


def test_every_package_was_read() -> None:
    found = sources()
    assert {name.partition(".")[0] for name in found} == set(PACKAGES)
    assert {"amqpstore.store", "server.broker.queue", "server.protocol.methods"} <= found.keys()


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("amqpstore.bad", "import server"),
        ("amqpstore.bad", "from server.broker import queue"),
        ("amqpstore.bad", "import tools.bench"),
        ("amqpstore.bad", "import trio"),
        ("amqpstore.bad", "from trio import sleep"),
        ("amqpstore.bad", "import socket"),
        ("amqpstore.bad", "import asyncio"),
        ("amqpstore.bad", "import os\nos.remove('x')"),
        ("amqpstore.bad", "import os as system\nsystem.remove('x')"),
        ("amqpstore.bad", "from os import remove"),
        ("amqpstore.bad", "open('x')"),
        ("amqpstore.bad", "from pathlib import Path"),
        ("amqpstore.bad", "def f():\n    import server"),
        ("amqpstore.bad", "if TYPE_CHECKING:\n    from server import app"),
        ("amqpstore.bad", "import importlib\nimportlib.import_module('server.app')"),
        ("amqpstore.bad", "__import__('server')"),
        ("server.bad", "import tools"),
        ("server.bad", "from tools.bench import wire"),
        ("server.amqp.bad", "import trio"),
        ("server.amqp.bad", "from trio.abc import Stream"),
        ("server.protocol.bad", "import trio"),
        ("server.protocol.bad", "import socket"),
        ("server.protocol.bad", "import time"),
        ("server.protocol.bad", "from time import monotonic"),
        ("server.protocol.bad", "import random"),
        ("server.protocol.bad", "import amqpstore"),
        ("server.protocol.bad", "from amqpstore import Store"),
        ("server.protocol.bad", "from server.broker import queue"),
        ("server.protocol.bad", "from server import broker"),
        ("server.protocol.bad", "from .. import broker"),
        ("server.protocol.bad", "from ..broker.queue import Queue"),
        ("server.broker.bad", "import trio"),
        ("server.broker.bad", "import socket"),
        ("server.broker.bad", "import time"),
        ("server.broker.bad", "import random"),
        ("server.broker.bad", "from server.protocol import frames"),
        ("server.broker.bad", "from server.amqp import channel"),
        ("server.broker.exchanges.bad", "from server.protocol.frames import x"),
        ("tools.bad", "import server"),
        ("tools.bad", "from server.app import run"),
        ("tools.offline.bad", "from server.broker.queue import Queue"),
        ("tools.offline.bad", "import server.app"),
        ("tools.bench.bad", "import server"),
        ("tools.bench.bad", "from amqpstore import Store"),
        ("tools.bench.serve", "import server"),
        ("tools.pika_extras.bad", "import amqpstore"),
        ("tools.pika_extras.bad", "from server.app import run"),
        ("tools.pika_extras.bad", "from tools.bench import wire"),
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
        ("amqpstore.good", "import amqpstore.files\nfrom amqpstore.store import Store"),
        ("amqpstore.good", "import time, struct, lmdb"),
        ("amqpstore.good", "self.open('x')"),
        ("amqpstore.files", "import os, fcntl\nos.remove('x')"),
        ("server.good", "import trio, socket, time\nfrom amqpstore import Store"),
        ("server.amqp.good", "from amqpstore import Store\nfrom server.protocol import frames"),
        ("server.protocol.good", "from server.protocol import frames\nfrom . import spec"),
        ("server.broker.good", "import amqpstore\nfrom server.broker import queue"),
        ("server.broker.good", "from server.protocol.content import BasicProperties"),
        ("server.broker.good", "from datetime import timedelta"),
        ("tools.pika_extras.good", "import pika\nfrom tools.pika_extras.xid import Xid"),
        ("tools.good", "from amqpstore import Store\nimport trio"),
        ("tools.serve", "from server.app import run"),
        ("tools.offline.good", "from server.protocol.content import decode_properties"),
        ("tools.testing.good", "from server.app import App"),
        ("tools.bench.good", "import socket, time, random\nfrom tools.bench import wire"),
    ],
)
def test_a_right_import_is_no_finding(module: str, statement: str) -> None:
    assert list(violations({module: statement})) == []


def test_a_module_on_disk_is_read_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "server" / "protocol").mkdir(parents=True)
    (tmp_path / "server" / "protocol" / "__init__.py").write_text("from . import bad\n")
    (tmp_path / "server" / "protocol" / "bad.py").write_text("import random\n")
    found = sources(tmp_path)
    assert found.keys() == {"server.protocol.__init__", "server.protocol.bad"}
    assert list(violations(found)) == ["server.protocol.bad imports random"]


def sources(root: Path = ROOT) -> Sources:
    """The text of every module of ours, by its dotted name; a package's ends in `.__init__`."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name] = path.read_text("utf-8")
    return found


def violations(modules: Sources) -> Iterator[str]:
    """One line for each import, and each use of files, that the rules forbid."""
    for module, text in modules.items():
        tree = ast.parse(text)
        for imported in sorted(set(imports(module, tree))):
            if is_forbidden(module, imported):
                yield f"{module} imports {imported}"
        if is_within(module, "amqpstore") and module not in FILE_MODULES:
            yield from file_uses(module, tree)


def is_forbidden(module: str, imported: str) -> bool:
    """Whether this arrow is one of those that must not be."""

    def among(*names: str) -> bool:
        return any(is_within(imported, name) for name in names)

    if is_within(module, "amqpstore"):
        return among("server", "tools", "trio", "socket", "asyncio")
    if is_within(module, "tools"):
        if is_within(module, "tools.bench"):
            return among("server") or (
                among("amqpstore") and not is_within(module, "tools.bench.store")
            )
        if is_within(module, "tools.pika_extras"):
            ours = among("tools") and not among("tools.pika_extras") and imported != "tools"
            return ours or among("amqpstore", "server")
        runs_it = module == "tools.serve" or is_within(module, "tools.testing")
        # A message's properties are shown, and nothing else of the broker is known.
        shows_it = is_within(module, "tools.offline") and among(*OFFLINE_MODULES)
        return among("server") and not runs_it and not shows_it
    if among("tools", "asyncio"):
        return True
    if among("trio") and module.count(".") > 1:
        return True
    if is_within(module, "server.protocol"):
        ours = among("server") and not among("server.protocol") and imported != "server"
        return ours or among("socket", "time", "random", "amqpstore")
    if is_within(module, "server.broker"):
        protocol = among("server.protocol") and not among(*MESSAGE_MODULES)
        return protocol or among("socket", "time", "random", "server.amqp")
    return False


def is_within(module: str, package: str) -> bool:
    """Whether a module is a package or in it."""
    return module == package or module.startswith(f"{package}.")


def imports(module: str, tree: ast.Module) -> Iterator[str]:
    """What a module imports, anywhere in it. `from a import b` counts as `a` and as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: -node.level]
                base = ".".join([*parents, base] if base else parents)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0]
            if name in ("__import__", "import_module") and isinstance(first, ast.Constant):
                yield str(first.value)


def file_uses(module: str, tree: ast.Module) -> Iterator[str]:
    """Where a module gets at files by another way than `amqpstore.files`."""
    system = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "os"
    }
    harmless = ("path", "getpid", "fspath", "PathLike")
    for imported in sorted(set(imports(module, tree))):
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
