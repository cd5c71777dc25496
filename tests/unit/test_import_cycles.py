"""No module imports itself by way of others, not even from inside a function.

A cycle works as long as nobody imports its modules in another order, and then fails in a process
that nobody thought of. Imports for the type checker alone (`if TYPE_CHECKING`) do no such harm, but
who reads one of these modules has to know them all: most rooms have no such cycles either.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.unit.python_sources import Sources, imported_by, imports, sources

ROOMS_WITH_CYCLES_OF_TYPES = {
    "amqpstore_server.broker",
    "amqpstore_server.statistics",
    "amqpstore_tools.drill",
}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycle_of(sources()) == []


def test_no_modules_of_a_room_know_each_others_types() -> None:
    rooms: dict[str, Sources] = {}
    for name, text in sources().items():
        if name.count(".") > 1:
            rooms.setdefault(".".join(name.split(".")[:2]), {})[name] = text
    cycles = {room: cycle_of(modules, with_types=True) for room, modules in rooms.items()}
    assert {room: cycle for room, cycle in cycles.items() if cycle}.keys() == (
        ROOMS_WITH_CYCLES_OF_TYPES
    ), cycles


def cycle_of(modules: Sources, *, with_types: bool = False) -> list[str]:
    """The modules of a cycle, each of which is imported by the next; empty if there is none."""
    try:
        TopologicalSorter(graph_of(modules, with_types=with_types)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def graph_of(modules: Sources, *, with_types: bool = False) -> dict[str, set[str]]:
    """Return what each module imports of ours, anywhere in it."""
    names = {name.removesuffix(".__init__"): name for name in modules}
    graph = {}
    for module, text in modules.items():
        imported = imports(module, text)
        if "TYPE_CHECKING" in text and not with_types:
            tree = WithoutTypes().visit(ast.parse(text))
            imported = frozenset(
                name for node in ast.walk(tree) for name in imported_by(module, node)
            )
        graph[module] = {names[one] for one in nearest(names, imported)} - {module}
    return graph


def nearest(names: dict[str, str], imported: frozenset[str]) -> Iterator[str]:
    """The modules of ours among what is imported, but no package that is named for its module."""
    ours = imported & names.keys()
    for name in ours:
        if not any(one.startswith(f"{name}.") for one in ours):
            yield name


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what only a type checker imports."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else node


@pytest.mark.parametrize(
    ("one", "other", "is_cycle"),
    [
        ("import a.two", "from a.one import x", True),
        ("def f():\n    from a.two import x", "import a.one", True),
        ("if TYPE_CHECKING:\n    from a.two import x", "import a.one", False),
        ("import a.two", "import b", False),
    ],
)
def test_a_cycle_is_found(one: str, other: str, is_cycle: bool) -> None:
    modules = {"a.__init__": "", "a.one": one, "a.two": other}
    assert bool(cycle_of(modules)) is is_cycle


def test_a_cycle_of_types_is_found() -> None:
    modules = {
        "a.__init__": "",
        "a.one": "if TYPE_CHECKING:\n    from a.two import x",
        "a.two": "import a.one",
    }
    assert cycle_of(modules) == []
    assert cycle_of(modules, with_types=True)[0] in modules
