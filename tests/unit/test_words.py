"""A name says what it names: a method that does something is no question."""

import ast
from collections.abc import Iterator

import pytest

from tests.unit.python_sources import Sources, parsed, sources

QUESTIONS = ("has_", "is_", "can_")
"""What a method is called that answers yes or no."""


def commands_as_questions(modules: Sources) -> Iterator[str]:
    """Functions that are called as if they answered, and return nothing."""
    for module, text in modules.items():
        for node in ast.walk(parsed(text)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.lstrip("_").startswith(QUESTIONS)
                and isinstance(node.returns, ast.Constant)
                and node.returns.value is None
            ):
                yield f"{module}:{node.lineno}: `{node.name}` returns nothing: name what it does"


def test_no_method_that_does_something_is_called_like_a_question() -> None:
    modules = {
        module: text
        for module, text in sources().items()
        # A name here is the second half of a sentence: drills say what a member is or has.
        if not module.startswith("amqpstore_tools.simulation.cluster.")
    }
    assert list(commands_as_questions(modules)) == []


@pytest.mark.parametrize("name", ["has_room", "_is_done", "can_go"])
def test_a_command_that_is_called_like_a_question_is_found(name: str) -> None:
    command = f"class A:\n    def {name}(self) -> None: ...\n"
    [complaint] = commands_as_questions({"a": command})
    assert complaint.startswith(f"a:2: `{name}`")
    assert not [*commands_as_questions({"a": command.replace("None", "bool")})]
