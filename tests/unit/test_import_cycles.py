"""No module imports itself by way of others, not even from inside a function.

A cycle works until its modules are imported in another order, and then fails in a process that was
not thought of. Imports for the type checker alone (`if TYPE_CHECKING`) do no such harm, but readers
of one of these modules have to know them all: most rooms have no such cycles either.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.unit.python_sources import Sources, imported_by, imports, sources

# Modules that know each other's types: a store and what is done with it, a queue and its organs.
CYCLES_OF_TYPES = {
    frozenset(f"amqpstore.{name}" for name in ("prepared", "purges", "store", "transaction")),
    frozenset(
        f"amqpstore_server.broker.queues.{name}"
        for name in (
            *("backlog", "consumer", "dispatch", "letters", "message_sums", "pending_moves"),
            *("purges", "queue", "room", "waiting"),
        )
    ),
}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycle_of(sources()) == []


def test_no_other_modules_know_each_others_types() -> None:
    """A Protocol in the lower one says what it needs of the other."""
    assert cycles_of_types(sources()) == CYCLES_OF_TYPES


def cycles_of_types(modules: Sources) -> set[frozenset[str]]:
    """The largest sets of modules each of which imports all others, if only by way of others."""
    graph = graph_of(modules, with_types=True)
    left = set(graph)
    while ends := {one for one in left if not graph[one] & left}:
        left -= ends
    reached = {one: _reached(one, graph, left) for one in left}
    return {
        frozenset(one for one in reached[start] if start in reached[one])
        for start in left
        if start in reached[start]
    }


def _reached(start: str, graph: dict[str, set[str]], within: set[str]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] & within - found
        found |= new
        waiting += new
    return found


def cycle_of(modules: Sources) -> list[str]:
    """The modules of a cycle, each of which is imported by the next; empty if there is none."""
    try:
        TopologicalSorter(graph_of(modules)).prepare()
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
    assert cycles_of_types(modules) == {frozenset({"a.one", "a.two"})}
