"""The modules of ours as text and as trees, read and parsed once for all tests of them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"amqpstore": ".", "amqpstore_server": "server", "amqpstore_tools": "tools"}
"""Each with its source root."""

IMPORTERS = ("__import__", "import_module")

Sources = dict[str, str]
"""The text of modules, by their dotted names; a package's ends in `.__init__`."""


def sources(root: Path = ROOT) -> Sources:
    """The text of every module of ours, by its dotted name; a package's ends in `.__init__`."""
    found = {}
    for package, source_root in PACKAGES.items():
        for path in sorted((root / source_root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root / source_root).with_suffix("").parts)
            found[name] = path.read_text("utf-8")
    return found


def sources_of_tests(root: Path = ROOT) -> Sources:
    """The text of every module of the tests, by its dotted name."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted((root / "tests").rglob("*.py"))
    }


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a module, which no test may change."""
    return ast.parse(text)


@cache
def imports(module: str, text: str) -> frozenset[str]:
    """Return all that a module imports, anywhere in it. `from a import b` is `a` and `a.b`."""
    return frozenset(name for node in ast.walk(parsed(text)) for name in imported_by(module, node))


def imported_by(module: str, node: ast.AST) -> Iterator[str]:
    """Yield what one node of a module's tree imports."""
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
        first = node.args[0]
        if isinstance(first, ast.Constant) and name_of(node.func) in (
            "__import__",
            "import_module",
        ):
            yield str(first.value)


def name_of(called: ast.expr) -> str:
    """The last part of the name of what is called."""
    return ast.unparse(called).rpartition(".")[2]
