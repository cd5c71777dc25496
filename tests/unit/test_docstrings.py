"""Docstrings that show the way: each package names its modules, and long modules say why. A string
that stands alone is a docstring, and not the rest of a text that lost its parentheses.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.python_sources import parsed

ROOT = Path(__file__).parents[2]
PACKAGES = ("amqpstore", "server/amqpstore_server", "tools/amqpstore_tools")
MAX_LINES = 600

Sources = dict[str, str]
"""Files by their paths from the root on."""

# An item of a list names modules, several where they belong together, each before a colon:
# - `log`, `segments`: the log, and one file of it; `records`: how both are framed.
ITEM = re.compile(r"^- (`.*?)(?=^- |^\S|^$|\Z)", re.MULTILINE | re.DOTALL)
NAMES = re.compile(r"((?:`[a-z_][a-z0-9_]*`,\s+)*`[a-z_][a-z0-9_]*`):\s")


def sources(*folders: str) -> Sources:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for folder in folders or PACKAGES
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def test_every_package_names_its_modules() -> None:
    assert list(unnamed(sources(*PACKAGES, "tests"))) == []


def test_a_module_that_is_long_says_why() -> None:
    assert list(too_long(sources(*PACKAGES, "tests"))) == []


def test_no_part_of_a_text_stands_alone() -> None:
    assert list(lone_pieces(sources())) == []


def test_a_part_of_a_text_that_stands_alone_is_found() -> None:
    text = """def f(x: int) -> str:
    '''Return a text.'''
    part = f"a {x} "
    "and more"
    return part
"""
    assert [finding.partition(":")[0] for finding in lone_pieces({"a.py": text})] == ["a.py"]
    assert len(list(lone_pieces({"a.py": text.replace('"and more"', 'f"and {x}"')}))) == 1
    assert list(lone_pieces({"a.py": text.replace('    "and more"\n', "")})) == []
    attribute = "class A:\n    def f(self) -> None:\n        self.x = 1\n        '''It.'''\n"
    assert list(lone_pieces({"a.py": attribute})) == []


def test_a_module_without_a_name_and_a_name_without_a_module_are_found() -> None:
    named = (
        '"""A room.\n\n- `one`, `two`: numbers;\n  `three`: another.\n- `inner`: a package.\n"""\n'
    )
    room = {"a/__init__.py": named, "a/one.py": "", "a/two.py": "", "a/three.py": ""}
    room |= {"a/inner/__init__.py": '"""Empty."""\n', "a/__main__.py": ""}
    assert list(unnamed(room)) == []
    assert len(list(unnamed(room | {"a/four.py": ""}))) == 1
    assert len(list(unnamed(room | {"a/inner/five.py": ""}))) == 1
    del room["a/two.py"]
    (finding,) = unnamed(room)
    assert "`two`" in finding


def test_a_long_module_without_a_reason_is_found() -> None:
    long = "\n" * (MAX_LINES + 1)
    assert len(list(too_long({"a.py": '"""What it is."""' + long}))) == 1
    assert len(list(too_long({"a.py": '"""Past 600 lines because it is a list."""' + long}))) == 0


def unnamed(files: Sources) -> Iterator[str]:
    """Modules that the docstring of their package does not name, and names without a module."""
    for path, text in files.items():
        package, _, name = path.rpartition("/")
        if name != "__init__.py":
            continue
        named = set(names(ast.get_docstring(parsed(text)) or ""))
        there = set(modules(package, files))
        for module in sorted(there - named):
            yield (
                f"{path}: its docstring does not name `{module}`; add it to the list there, as in "
                f"- `{module}`: what it is for"
            )
        for module in sorted(named - there):
            yield f"{path}: its docstring names `{module}`, which is not a module of {package}"


def names(docstring: str) -> Iterator[str]:
    """Modules that a package's docstring names in its lists."""
    for item in ITEM.findall(docstring):
        for group in NAMES.findall(item + " "):
            yield from re.findall(r"`(\w+)`", group)


def modules(package: str, files: Sources) -> Iterator[str]:
    """Modules and packages directly in a package."""
    for path in files:
        folder, _, name = path.rpartition("/")
        if folder == package and name not in {"__init__.py", "__main__.py"}:
            yield name.removesuffix(".py")
        if name == "__init__.py" and folder.rpartition("/")[0] == package:
            yield folder.rpartition("/")[2]


def too_long(files: Sources) -> Iterator[str]:
    """Modules past the limit whose docstring does not say why."""
    for path, text in files.items():
        lines = text.count("\n")
        if lines <= MAX_LINES:
            continue
        docstring = ast.get_docstring(parsed(text)) or ""
        if not re.search(r"Past \d+ lines because", docstring):
            yield (
                f"{path} has {lines} lines: find a seam, or say in its docstring "
                f'"Past {MAX_LINES} lines because ..."'
            )


def lone_pieces(files: Sources) -> Iterator[str]:
    """Strings in single quotes that are statements: the code drops them."""
    for path, text in files.items():
        lines = text.splitlines()
        for node in ast.walk(parsed(text)):
            if not isinstance(node, ast.Expr):
                continue
            value = node.value
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
            if isinstance(value, ast.JoinedStr) or is_text:
                source = lines[node.lineno - 1].strip()
                if not source.lstrip("r").startswith(('"""', "'''")):
                    yield f"{path}: line {node.lineno}: {source}"
