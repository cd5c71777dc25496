"""Each module of the wheel is needed by its users: one of the doors leads to it."""

from tests.unit.python_sources import Sources, imports, sources

DOORS = (
    "amqpstore",
    "amqpstore_server.plugins",
    "amqpstore_tools.__main__",
    "amqpstore_tools.pika",
    "amqpstore_tools.spark",
    "amqpstore_tools.testing.plugin",
)
"""Modules that a command, a project's code, pytest and Spark load."""

VERBS = "amqpstore_tools.verbs"
"""The package whose modules the command loads by name."""


def test_every_module_is_behind_a_door() -> None:
    assert unreachable(sources(), DOORS) == []


def test_a_module_that_only_tests_would_import_is_found() -> None:
    modules = {
        "amqpstore.__init__": "from amqpstore.store import Store",
        "amqpstore.store": "from amqpstore.log import log",
        "amqpstore.log.__init__": "",
        "amqpstore.log.log": "",
        "amqpstore.proofs.__init__": "",
        "amqpstore.proofs.etcd": "from amqpstore.store import Store",
    }
    assert unreachable(modules, ("amqpstore",)) == [
        "amqpstore.proofs.__init__",
        "amqpstore.proofs.etcd",
    ]


def unreachable(modules: Sources, doors: tuple[str, ...]) -> list[str]:
    """Return the modules that none of the doors imports, directly or through others."""
    by_name = {name.removesuffix(".__init__"): name for name in modules}
    waiting = [name for name in by_name if name in doors or name.startswith(f"{VERBS}.")]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached and name in by_name:
            reached.add(name)
            module = by_name[name]
            waiting += imports(module, modules[module])
            waiting.append(name.rpartition(".")[0])
            # Started as a process of its own, by its name.
            waiting += (other for other in by_name if f'"{other}"' in modules[module])
    return [by_name[name] for name in sorted(by_name.keys() - reached)]
