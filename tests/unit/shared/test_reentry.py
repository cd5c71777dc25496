"""A signal handler or a finalizer that uses the store during a call of its own thread is refused:
it would wait for ever for what its thread holds.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amqpstore import ReenteredError, SharedStore, StoreClosedError, StoreError
from amqpstore.log.log import Log
from amqpstore.shared.locked_store import LockedStore
from amqpstore.shared.queues import Queues
from tests.unit.shared.conftest import OPTIONS
from tests.unit.shared.waiting import ready, receive, send

MOMENTS = {"under the lock": (Queues, "get"), "while it writes": (Log, "write")}


class Within:
    """Calls something once, within the next call of a method."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self.todo: Callable[[], object] | None = None
        method = getattr(kind, name)

        def patched(*args: Any) -> Any:
            todo, self.todo = self.todo, None
            if todo:
                todo()
            return method(*args)

        patch.setattr(kind, name, patched)


@pytest.fixture(params=[*MOMENTS.values()], ids=[*MOMENTS])
def within(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Within:
    return Within(monkeypatch, *request.param)


USES: dict[str, Callable[[SharedStore], object]] = {
    "a transaction": lambda shared: send(shared, "q", b"from within"),
    "a look": lambda shared: shared.queues(),
    "housekeeping": lambda shared: shared.housekeep(),
    "a close": lambda shared: shared.close(),
    "an end": lambda shared: shared.abandon(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_finalizer_is_told_and_its_thread_goes_on(
    shared: SharedStore, within: Within, use: Callable[[SharedStore], object]
) -> None:
    errors: list[StoreError] = []

    def finalize() -> None:  # the interpreter prints what a finalizer raises, and goes on
        try:
            use(shared)
        except StoreError as error:
            errors.append(error)

    within.todo = finalize
    send(shared, "q", b"one")
    (error,) = errors
    assert isinstance(error, ReenteredError)
    assert shared.directory in str(error)
    send(shared, "q", b"two")
    assert receive(shared, "q", 5) == [b"one", b"two"]


@pytest.fixture
def on_signal(shared: SharedStore) -> Iterator[None]:
    """A handler that uses the store, and lets its error through."""
    before = signal.signal(signal.SIGUSR1, lambda *_: send(shared, "q", b"from within"))
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("on_signal")
def test_what_was_committed_is_there_after_an_error_of_a_signal_handler(
    shared: SharedStore, directory: str, within: Within
) -> None:
    send(shared, "q", b"before")
    within.todo = lambda: signal.raise_signal(signal.SIGUSR1)
    with contextlib.suppress(StoreError):  # raised by the call that was interrupted
        send(shared, "q", b"one")
    shared.abandon()
    with SharedStore.open(directory, options=OPTIONS) as again:
        assert receive(again, "q", 5)[0] == b"before"


@pytest.mark.usefixtures("on_signal")
def test_an_error_in_the_midst_of_a_change_is_not_taken_for_the_engines_own(
    shared: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other StoreError says that nothing was changed."""
    within = Within(monkeypatch, Queues, "delete")
    within.todo = lambda: signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(ReenteredError):
        shared.delete("q")
    with pytest.raises(StoreClosedError, match="was interrupted"):
        shared.queues()


def test_a_thread_that_was_interrupted_may_come_again(
    shared: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LockedStore, "check_open", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shared.queues()
    assert ready(shared, "q") == 0
