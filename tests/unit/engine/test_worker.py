"""Workers: one piece of work at a time, its result or its error, in the owner's thread."""

import threading
from collections.abc import Iterator

import pytest

from amqpstore.upkeep.worker import InlineWorker, Outcome, ThreadWorker, Worker


@pytest.fixture(params=[InlineWorker, ThreadWorker])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    found: Worker = request.param()
    yield found
    found.close()


def outcome(worker: Worker) -> Outcome[object]:
    found = worker.poll(wait=True)
    assert found is not None
    return found


def test_what_the_work_returned_is_its_outcome_once(worker: Worker) -> None:
    worker.start(lambda: "result")
    assert outcome(worker).get() == "result"
    assert worker.poll() is None


def test_none_is_a_result(worker: Worker) -> None:
    worker.start(lambda: None)
    assert outcome(worker).get() is None


def test_what_the_work_raised_is_raised_where_it_is_asked_for(worker: Worker) -> None:
    def fails() -> None:
        raise OSError(28, "no room")

    worker.start(fails)
    found = outcome(worker)
    with pytest.raises(OSError, match="no room"):
        found.get()
    # And the worker goes on.
    worker.start(lambda: 2)
    assert outcome(worker).get() == 2


def test_one_piece_of_work_after_the_other(worker: Worker) -> None:
    for number in range(5):
        worker.start(lambda number=number: number)  # type: ignore[misc]
        assert outcome(worker).get() == number


def test_a_worker_without_work_has_no_outcome_and_closes(worker: Worker) -> None:
    assert worker.poll() is None


def test_a_thread_does_the_work_while_its_owner_goes_on() -> None:
    worker = ThreadWorker()
    may_go_on = threading.Event()
    threads: list[threading.Thread] = []

    def work() -> str:
        threads.append(threading.current_thread())
        may_go_on.wait()
        return "done"

    worker.start(work)
    assert worker.poll() is None
    may_go_on.set()
    assert outcome(worker).get() == "done"
    assert threads != [threading.current_thread()]
    worker.close()
    assert not threads[0].is_alive()


def test_closing_a_worker_waits_for_what_is_under_way() -> None:
    worker = ThreadWorker()
    begun = threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        done.append("done")

    worker.start(work)
    begun.wait()
    worker.close()
    assert done == ["done"]


def test_work_is_done_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = ThreadWorker()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        worker.start(lambda: 1)
    assert outcome(worker).get() == 1
    worker.start(threading.current_thread)
    assert outcome(worker).get() is not threading.current_thread()
    worker.close()
