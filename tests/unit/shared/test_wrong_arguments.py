"""A wrong argument is refused in its call, and affects no other caller: each public method of a
shared store, with each kind of wrong value in each of its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpstore import (
    Envelope,
    Message,
    Options,
    SharedPrepared,
    SharedStore,
    SharedTransaction,
    Store,
    StoreError,
)
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.shared.conftest import OPTIONS
from tests.unit.shared.waiting import ready, receive, send

ENVELOPE = Envelope("", "q")


class Text(str):
    __slots__ = ()


class RudeError(Exception):
    pass


class Rude:
    """Every question about it is an error."""

    def __eq__(self, other: object) -> bool:
        raise RudeError("it cannot be compared")

    def __hash__(self) -> int:
        raise RudeError("it cannot be hashed")

    def __repr__(self) -> str:
        raise RudeError("it cannot be shown")

    def __len__(self) -> int:
        raise RudeError("it cannot be measured")

    def __iter__(self) -> Iterator[bytes]:
        raise RudeError("it cannot be read")


def message(body: Any = b"body", envelope: Any = ENVELOPE) -> Message:
    return Message(envelope, body)


WRONG: list[Any] = [
    *(None, object(), Rude(), True, 0, -1, 1.5, 10**20, 10**400, -(10**20)),
    *(float("nan"), float("inf"), float("-inf"), 1j),
    *("", "text", "\ud800", "no such queue", "x" * 70_000, Text("q")),
    *(b"", b"bytes", bytearray(b"bytes"), memoryview(b"bytes")),
    *([], [None], ["abc"], [3], [[]], ["q", "q"], ["q", 3], ["q", []], [Rude()], {}, {"q": 1}, ()),
    *(message(), [message("text")], [message(None)], [message(bytearray(b"b"))], [message(3)]),
    *([message(Rude())], [message(envelope=None)], [message(envelope="q")], [message(envelope=3)]),
    *([b"one", "two"], [b"one", message("two")], [bytearray(b"one")], [memoryview(b"one")]),
    [message(), message(envelope=Envelope("", "q", persistent=False))],
    [message(envelope=Envelope("", "q", persistent=False))],
]

RIGHT: dict[str, Any] = {
    "name": "q",
    "queue": "q",
    "messages": [b"right"],
    "label": "right",
    "timeout_s": 0,
}
"""Arguments that have to be there, and a wait that ends."""


def methods(kind: type) -> list[str]:
    return [
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    ]


def calls(method: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Each argument with each wrong value, with right ones beside it."""
    parameters = list(inspect.signature(method).parameters)
    for wrong in parameters:
        right = {name: RIGHT[name] for name in parameters if name in RIGHT}
        for value in WRONG:
            yield {**right, wrong: value}


def check_works(shared: SharedStore) -> None:
    """Check that others can use the store."""
    send(shared, "other", b"theirs")
    assert receive(shared, "other") == [b"theirs"]


def attempt(work: Callable[[], Any]) -> None:
    """Only these errors are for wrong arguments, and one of an argument's own."""
    try:
        found = work()
        if isinstance(found, Iterator):
            list(found)
    except (TypeError, ValueError, StoreError, TimeoutError, RudeError):
        pass


@pytest.fixture
def library(shared: SharedStore) -> SharedStore:
    shared.declare("other")
    shared.declare("history", history_length=10)
    return shared


@pytest.mark.parametrize("name", methods(SharedStore))
def test_the_store_goes_on(library: SharedStore, name: str) -> None:
    for arguments in calls(getattr(library, name)):
        attempt(lambda: getattr(library, name)(**arguments))  # noqa: B023 (at once)
        library.declare("q")
    check_works(library)


@pytest.mark.parametrize("name", methods(SharedTransaction))
def test_transactions_of_others_go_on(library: SharedStore, name: str) -> None:
    for arguments in calls(getattr(library.transaction(), name)):
        send(library, "q", b"there")  # raises, if it was stopped by the arguments before

        def work() -> None:
            with library.transaction() as transaction:
                transaction.send("history", [b"in the same one"])
                getattr(transaction, name)(**arguments)  # noqa: B023 (at once)

        attempt(work)
        for prepared in library.prepared():
            prepared.rollback()
    check_works(library)


def test_no_public_method_is_left_out() -> None:
    with_arguments = {*methods(SharedStore), *methods(SharedTransaction)}
    assert with_arguments == {
        *("declare", "find", "delete", "history"),
        *("send", "receive", "replay", "peek", "prepare"),
    }
    assert list(methods(SharedPrepared)) == []


WRONG_VALUES: list[Any] = [None, "1", 1.5, -(1 << 40), 1 << 64, []]
WRONG_OPTIONS = [
    Options()._replace(**{name: value})
    for name in Options._fields
    if name != "limits"
    for value in WRONG_VALUES
]


def test_wrong_options_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    wrong: list[Any] = [None, {}, (), *WRONG_OPTIONS]
    for options in wrong:
        for opened in (Store.open, SharedStore.open):
            with pytest.raises((TypeError, ValueError), match="option"):
                opened(str(tmp_path / "new"), options=options)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_could_not_be_opened_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("not now")

    with monkeypatch.context() as patch:
        patch.setattr("amqpstore.store.restore", fail)
        with pytest.raises((RuntimeError, TypeError)):
            Store.open(str(tmp_path / "store"), options=OPTIONS, worker=InlineWorker())
    Store.open(str(tmp_path / "store"), options=OPTIONS, worker=InlineWorker()).close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["abc"], "a message must be bytes or a Message, not str"),
        (b"abc", "messages must be in a list, not bytes"),
        (message(), "messages must be in a list, not Message"),
        ([message("abc")], "must have a body of type bytes, not str"),
    ],
)
def test_what_is_wrong_is_said(library: SharedStore, wrong: Any, said: str) -> None:
    with library.transaction() as transaction:
        with pytest.raises((TypeError, ValueError), match=said):
            transaction.send("q", wrong)
        with pytest.raises(ValueError, match="not nan"):
            transaction.receive("q", timeout_s=float("nan"))
    assert ready(library, "q") == 0


def test_messages_may_come_from_the_store_itself(library: SharedStore) -> None:
    send(library, "history", b"one", b"two")
    receive(library, "history", 2)
    with library.transaction() as transaction:
        transaction.send("q", (one.message for one in library.history("history")))
    assert receive(library, "q", 2) == [b"one", b"two"]
