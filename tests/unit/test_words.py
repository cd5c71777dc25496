"""Words that readers have to decode do not come back: in docstrings, comments and names of modules.

Each rule looks at one position only, so that it does not complain of plain English: the beginnings
of docstrings, docstrings and comments, names of functions, variables of long functions, or names
that other modules read.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.unit.python_sources import Sources, parsed, sources, sources_of_tests

PRONOUNS = re.compile(
    r"(After|And|As|Before|But|It|Its|Not|Of|Once|Since|So|That|The same|Their|These|They|This"
    r"|Those|Who|Whatever|Whoever)\b(?! `[a-z_]+`,)"
)
"""Words that no docstring begins with: a sentence has a subject, and that is named."""

QUESTIONS = re.compile(r"(How|What|When|Where|Which|Who|Whose|Why)\b")
"""Questions that none begins with either; that of an attribute may say how many there are."""

PHRASES = re.compile(
    r"\b(by and by|in vain|no one|nobody|so long|so many)\b(?! that\b)", re.IGNORECASE
)
"""Phrases that no docstring or comment has: the number, or the noun ("no client"), is clearer."""

ANSWERS = ("has_", "is_", "can_")
"""Beginnings of names of functions that answer yes or no."""

PLACEHOLDERS = re.compile(r"(found|one|said|told|its_\w+)$")
"""Variables that do not say what they are: only comprehensions and short functions have them."""

VAGUE = frozenset(
    ("part", "parts", "place", "places", "placed", "placing", "leave", "leaves", "leaving")
)
"""Words in names that stand for many things: a slice, chunk, share or component; an index, offset,
position or path; a disconnect, removal, drop or release.
"""

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

NAMED_OUTSIDE = {
    "amqpstore.catalog.tables": {"places"},
    "amqpstore_server.management.bodies": {"_MAX_PARTS"},
    "amqpstore_tools.cluster.joining": {"leave"},
    "amqpstore_tools.cluster.status": {"place"},
    "amqpstore_tools.verbs.cluster": {"_leave"},
}
"""Names that stored rows, a verb, its output or a standard (MIME) have given."""

LONG_LINES = 20

ALIKE = {
    "errors": 10,
    "messages": 7,
    "report": 6,
    "definitions": 5,
    "options": 5,
    "settings": 5,
    "store": 5,
    "broker": 4,
    "cluster": 4,
    "limits": 4,
    "page": 4,
    "prepared": 4,
    "provenance": 4,
    "transaction": 4,
}
"""Names that more than three modules have, and how many. The list may only shrink; each room may
have its `errors`.
"""

SAME = (("MIN", "LEAST", "SMALLEST"), ("MAX", "MOST", "LARGEST"))
"""Words of limits that mean the same: a module has one of them for one thing."""

SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST | None, int, str]]:
    """Yield docstrings: what has each (None: an attribute), its line and its text."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            text = statement.value.value
            is_own = before is None and isinstance(node, DOCUMENTED)
            if isinstance(text, str) and (is_own or isinstance(before, ast.Assign | ast.AnnAssign)):
                yield node if is_own else None, statement.lineno, text.strip()


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield blocks of comments: the line where each begins, and its text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield first, " ".join(block)
            block = []
        if not block:
            first = line
        block.append(token.string.lstrip("# "))
        last = line
    if block:
        yield first, " ".join(block)


def beginnings(modules: Sources) -> Iterator[str]:
    """Yield docstrings that begin with a pronoun or a conjunction."""
    for module, text in modules.items():
        for _, line, docstring in docstrings(parsed(text)):
            if word := PRONOUNS.match(docstring):
                yield f"{module}:{line}: begins with {word[0]!r}: name the thing, or what is done"


def questions(modules: Sources) -> Iterator[str]:
    """Yield docstrings that begin with a question."""
    for module, text in modules.items():
        for node, line, docstring in docstrings(parsed(text)):
            word = QUESTIONS.match(docstring)
            if word and (node is not None or word[0] != "How"):
                yield f"{module}:{line}: begins with {word[0]!r}: begin with a noun or a verb"


def phrases(modules: Sources) -> Iterator[str]:
    """Yield phrases in docstrings and comments that stand for a number or a noun."""
    for module, text in modules.items():
        of_docstrings = [(line, prose) for _, line, prose in docstrings(parsed(text))]
        for line, prose in [*of_docstrings, *comments(text)]:
            for phrase in PHRASES.findall(" ".join(prose.split())):
                yield f"{module}:{line}: says {phrase!r}: say the number, or the noun"


def commands_as_answers(modules: Sources) -> Iterator[str]:
    """Yield functions that are named as if they answered, and return nothing."""
    for module, text in modules.items():
        for node in ast.walk(parsed(text)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.lstrip("_").startswith(ANSWERS)
                and isinstance(node.returns, ast.Constant)
                and node.returns.value is None
            ):
                yield f"{module}:{node.lineno}: `{node.name}` returns nothing: name what it does"


def placeholders(modules: Sources) -> Iterator[str]:
    """Yield variables and arguments of long functions that do not say what they are."""
    for module, text in modules.items():
        for function in ast.walk(parsed(text)):
            if (
                isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                and function.end_lineno is not None
                and function.end_lineno - function.lineno >= LONG_LINES
            ):
                for name in sorted(set(filter(PLACEHOLDERS.match, bound_by(function)))):
                    yield f"{module}:{function.lineno}: `{name}` of `{function.name}`: use its noun"


def bound_by(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the arguments of a function, and what it assigns outside of its comprehensions."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.arg
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if not isinstance(node, SCOPES):
            todo += ast.iter_child_nodes(node)


def pairs(modules: Sources) -> Iterator[str]:
    """Yield limits of one module whose names differ only in words that mean the same."""
    for module, text in modules.items():
        names = {
            node.id.lstrip("_")
            for statement in parsed(text).body
            if isinstance(statement, ast.Assign | ast.AnnAssign)
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for words in SAME:
            of_kind = Counter(
                name.partition("_")[2] for name in names if name.partition("_")[0] in words
            )
            for kind, count in sorted(of_kind.items()):
                if count > 1:
                    yield f"{module}: {count} limits {' and '.join(words)} of {kind!r}"


def vague_names(modules: Sources) -> Iterator[str]:
    """Yield modules, classes, functions, attributes and constants whose names have a vague word.
    Names of tests are sentences, and may have one.
    """
    for module, text in modules.items():
        kept = NAMED_OUTSIDE.get(module, set())
        basename = module.removesuffix(".__init__").rpartition(".")[2]
        for line, name in sorted({(1, basename), *defined_by(parsed(text))}):
            for word in VAGUE.intersection(map(str.lower, WORD.findall(name))):
                if name not in kept and not name.startswith("test_"):
                    yield f"{module}:{line}: `{name}` says {word!r}: say which kind"


def defined_by(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what is defined in a module, but for the variables and arguments of functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    for one in ast.walk(statement):
                        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                            yield one.lineno, one.id


RULES = {
    "pronouns": beginnings,
    "questions": questions,
    "phrases": phrases,
    "answers": commands_as_answers,
    "placeholders": placeholders,
    "pairs": pairs,
    "vague": vague_names,
}


@pytest.mark.parametrize("rule", RULES)
def test_words_say_what_they_mean(rule: str) -> None:
    assert list(RULES[rule](sources())) == []


@pytest.mark.parametrize("rule", RULES)
def test_words_of_tests_say_what_they_mean(rule: str) -> None:
    assert list(RULES[rule](sources_of_tests())) == []


LONG = "    pass\n" * LONG_LINES

MODULES = {
    "pronouns": [
        '"""Those of the API."""\n',
        'class A:\n    """Not before that it stands."""\n',
        'def f():\n    """That of a won election."""\n',
        'X = 1\n"""The same for more."""\n',
        'class A:\n    def f(self):\n        self.x = 1\n        """Of how many."""\n',
    ],
    "questions": [
        '"""What a member knows."""\n',
        'class A:\n    """How far it has come."""\n',
        'def f():\n    """Who asks."""\n',
        'X = 1\n"""What it takes."""\n',
    ],
    "phrases": [
        '"""Counts up to so\nmany."""\n',
        "# nobody waits\nx = 1\n",
        "x = 1  # read by no\n# one else\n",
        "x = 1  # for so long\n",
        'class A:\n    x = 1\n    """Done by and by."""\n',
    ],
    "answers": [
        "class A:\n    def has_room(self) -> None: ...\n",
        "def _is_done() -> None: ...\n",
    ],
    "placeholders": [
        "def f(one):\n" + LONG,
        "async def f(self):\n    its_count = 1\n" + LONG,
        "def f():\n    while found := read():\n        pass\n" + LONG,
    ],
    "vague": [
        "class RunPart: ...\n",
        "class A:\n    place: int\n",
        "class A:\n    def f(self):\n        self._leaving = 1\n",
        "def _in_parts(): ...\n",
        "_MAX_PLACES = 1\n",
        "def place_of(): ...\n",
    ],
    "pairs": ["SMALLEST_BYTES = 2\nLEAST_BYTES = 1\n", "_MAX_S: int = 2\nMOST_S = 1\n"],
}
GOOD = {
    "pronouns": '"""Theories of those."""\n"""That is no docstring."""\n',
    "questions": '"""A member knows what."""\nx = 1\n"""How many there are."""\n',
    "phrases": '"""So many that it waits."""\nx = "nobody"  # nor here so long that it counts\n',
    "answers": "def has_room() -> bool: ...\ndef note_room() -> None: ...\n",
    "placeholders": "def f(one):\n    found = one\ndef g():\n    a = [one for one in b]\n" + LONG,
    "vague": "class Partition:\n    replaced = partial\ndef f(part):\n    place = misplaced\n",
    "pairs": "MIN_BYTES = 1\nLEAST_S = 1\nMAX_BYTES = 2\n",
}


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule in RULES for text in MODULES[rule]]
)
def test_words_that_have_to_be_decoded_are_found(rule: str, text: str) -> None:
    [complaint] = RULES[rule]({"a": text})
    assert complaint.startswith("a:")


@pytest.mark.parametrize("rule", RULES)
def test_plain_english_is_left_alone(rule: str) -> None:
    assert list(RULES[rule]({"a": GOOD[rule]})) == []


def module_names(modules: Iterable[str]) -> Counter[str]:
    """Return how many modules have each name, without packages."""
    return Counter(name for module in modules if (name := module.rpartition(".")[2]) != "__init__")


def wrong_names(names: Counter[str]) -> list[str]:
    """Return the names that more modules have than may, or fewer than are listed."""
    return [
        f"{name}: {names[name]} modules, {ALIKE.get(name, 'at most 3')} expected"
        for name in sorted(names.keys() | ALIKE.keys())
        if (names[name] != ALIKE[name] if name in ALIKE else names[name] > 3)
    ]


def test_few_modules_have_one_name() -> None:
    assert wrong_names(module_names(sources())) == []


@pytest.mark.parametrize("name", ["report", "wire"])
def test_a_name_that_one_module_too_many_has_is_found(name: str) -> None:
    names = module_names(sources())
    names[name] = max(names[name], 3) + 1
    [complaint] = wrong_names(names)
    assert complaint.startswith(f"{name}: ")


def test_a_name_that_fewer_modules_have_than_are_listed_is_found() -> None:
    names = module_names(sources())
    names["errors"] -= 1
    [complaint] = wrong_names(names)
    assert complaint.startswith("errors: ")
