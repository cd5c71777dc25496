"""A Celery application whose workers are processes of their own, results over AMQP."""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest
from celery import chain, group
from celery.exceptions import TaskRevokedError
from kombu import pools

from tests.broker_process import BrokerProcess
from tests.conftest import URL_VARIABLE
from tests.interop.celery_application import make
from tests.interop.celery_worker import Worker
from tests.interop.pika_client import WAIT_S
from tests.interop.relay import Relay
from tests.waiting import wait_until

Application = Any
StartWorker = Callable[..., Worker]


def close(app: Application) -> None:
    """End the connections of an application, its result consumer's too."""
    # Celery's own stop() takes for granted that a result was waited for.
    with contextlib.suppress(AttributeError):
        app.backend.result_consumer.stop()
    pools.reset()
    app.close()


@pytest.fixture(scope="module")
def prefix() -> str:
    """A prefix for all names, as the broker may be shared."""
    return f"celery.{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def worker(
    module_broker: BrokerProcess | None, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Worker]:
    """A worker of the default queue, for the module's small tests."""
    url = os.environ[URL_VARIABLE] if module_broker is None else module_broker.url
    log_path = str(tmp_path_factory.mktemp("celery") / "shared")
    with Worker(url, prefix, log_path) as shared:
        yield shared
        assert shared.terminate() == 0, shared.log_tail()
    forget(url, prefix)


def forget(url: str, prefix: str) -> None:
    """Delete what stays at a broker that outlives the test run."""
    with kombu.Connection(url) as connection:
        channel: Any = connection.default_channel
        for name in (prefix, *(f"{prefix}.{part}" for part in ("extra", "killed", "cut", "later"))):
            channel.queue_delete(name)
            channel.exchange_delete(name)
        for name in ("events", "control.pidbox"):
            channel.exchange_delete(f"{prefix}.{name}")
        channel.exchange_delete(f"reply.{prefix}.control.pidbox")


@pytest.fixture
def app(url: str, prefix: str) -> Generator[Application]:
    """The application as a caller of tasks."""
    application = make(url, prefix)
    yield application
    close(application)


@pytest.fixture
def path(tmp_path: object) -> str:
    """A file through which a task and its test meet."""
    return os.path.join(str(tmp_path), "meeting")


def result(pending: Any) -> Any:
    """The task's result, or its exception."""
    return pending.get(timeout=WAIT_S)


def release(path: str) -> None:
    with open(f"{path}.release", "w", encoding="utf-8"):
        pass


def wait_for_start(path: str, times: int = 1) -> None:
    """Return when a `hold` task has been started so often."""

    def started() -> bool:
        try:
            with open(f"{path}.started", encoding="utf-8") as file:
                return len(file.readlines()) >= times
        except FileNotFoundError:
            return False

    wait_until(started, "task started", WAIT_S)


@pytest.mark.usefixtures("worker")
def test_results_come_back_over_amqp(app: Application) -> None:
    assert result(app.send_task("add", (2, 3))) == 5
    pending = [app.send_task("add", (number, number)) for number in range(50)]
    assert [result(each) for each in pending] == [2 * number for number in range(50)]


@pytest.mark.usefixtures("worker")
def test_an_exception_comes_back(app: Application) -> None:
    with pytest.raises(ValueError, match="wrong number"):
        result(app.send_task("fail", ("wrong number",)))


@pytest.mark.usefixtures("worker")
def test_states_come_before_the_result(app: Application) -> None:
    steps: list[int] = []

    def on_message(body: dict[str, Any]) -> None:
        if body["status"] == "PROGRESS":
            steps.append(body["result"]["step"])

    pending = app.send_task("progress", (5,))
    assert pending.get(timeout=WAIT_S, on_message=on_message) == "done"
    assert steps == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("worker")
def test_a_task_is_retried_until_it_succeeds(app: Application) -> None:
    assert result(app.send_task("flaky", (3,))) == 3


@pytest.mark.usefixtures("worker")
def test_a_task_runs_no_earlier_than_its_eta(app: Application) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=0.6)
    assert result(app.send_task("now", eta=eta)) >= eta.timestamp()
    sent = time.time()
    assert result(app.send_task("now", countdown=0.3)) >= sent + 0.3


def test_tasks_that_wait_for_their_time_leave_room_for_one_that_is_due(
    app: Application, url: str, prefix: str, path: str
) -> None:
    """The worker holds them unacked, and asks for one message more for each."""
    queue = f"{prefix}.later"
    with Worker(url, prefix, f"{path}.later", queues=queue):
        for _ in range(10):
            app.send_task("add", (0, 0), queue=queue, countdown=3600, ignore_result=True)
        assert result(app.send_task("add", (1, 2), queue=queue)) == 3


@pytest.mark.usefixtures("worker")
def test_a_chain_hands_results_on(app: Application) -> None:
    step = app.signature
    assert result(chain(step("add", (1, 2)), step("add", (10,)), step("add", (100,)))()) == 113


@pytest.mark.usefixtures("worker")
def test_a_group_gives_all_results(app: Application) -> None:
    tasks = group((app.signature("add", (number, 1)) for number in range(10)), app=app)
    assert result(tasks.apply_async()) == list(range(1, 11))


@pytest.mark.usefixtures("worker")
def test_higher_priorities_run_first(app: Application, path: str) -> None:
    """While the worker is busy and may not prefetch, tasks queue up by priority."""
    held = app.send_task("hold", (path,))
    wait_for_start(path)
    noted = [
        app.send_task("note", (path, str(priority)), priority=priority)
        for priority in (1, 9, 5, 0, 10)
    ]
    release(path)
    result(held)
    for each in noted:
        result(each)
    with open(path, encoding="utf-8") as file:
        assert file.read().split() == ["10", "9", "5", "1", "0"]


def test_remote_control_reaches_the_workers(app: Application, worker: Worker, prefix: str) -> None:
    """pidbox: a fanout exchange asks, each worker answers to a queue of the caller's."""
    inspect = app.control.inspect(timeout=WAIT_S, limit=1)
    assert inspect.ping() == {worker.node: {"ok": "pong"}}
    queues = inspect.active_queues()
    assert [queue["name"] for queue in queues[worker.node]] == [prefix]
    assert inspect.stats()[worker.node]["prefetch_count"] == 1


def test_a_worker_told_to_consume_another_queue_does(
    app: Application, worker: Worker, prefix: str
) -> None:
    extra = f"{prefix}.extra"
    added = app.control.add_consumer(extra, reply=True, timeout=WAIT_S, limit=1)
    assert "ok" in added[0][worker.node]
    assert result(app.send_task("add", (1, 1), queue=extra)) == 2
    app.control.cancel_consumer(extra, reply=True, timeout=WAIT_S, limit=1)


@pytest.mark.usefixtures("worker")
def test_a_revoked_task_does_not_run(app: Application, path: str) -> None:
    held = app.send_task("hold", (path,))
    wait_for_start(path)
    revoked = app.send_task("note", (path, "ran"))
    app.control.revoke(revoked.id, reply=True, timeout=WAIT_S, limit=1)
    release(path)
    result(held)
    with pytest.raises(TaskRevokedError):
        result(revoked)
    assert not os.path.exists(path)


@pytest.mark.usefixtures("worker")
def test_events_tell_what_happens_to_a_task(app: Application) -> None:
    """Workers publish events to a topic exchange; a monitor binds to those it wants."""
    seen: list[str] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection,
            handlers={"*": lambda event: seen.append(f"{event['type']} {event['uuid']}")},
            routing_key="task.#",
        )
        with receiver.consumer_context() as (consuming, _channel, _consumers):
            task = app.send_task("add", (1, 2)).id
            while f"task-succeeded {task}" not in seen:
                consuming.drain_events(timeout=WAIT_S)
    happened = [event.split()[0] for event in seen if event.endswith(task)]
    assert happened == ["task-received", "task-started", "task-succeeded"]


@pytest.mark.usefixtures("worker")
def test_a_task_whose_pool_process_was_killed_runs_again(app: Application, path: str) -> None:
    """`acks_late` and `reject_on_worker_lost`: the worker rejects it back into the queue."""
    assert result(app.send_task("die_once", (path,))) is True


def test_a_task_whose_worker_was_killed_is_run_by_another(
    app: Application, url: str, prefix: str, path: str
) -> None:
    """The worker's connection is gone, so the broker requeues the task without a reject, as
    redelivered.
    """
    queue = f"{prefix}.killed"
    with Worker(url, prefix, f"{path}.first", queues=queue) as first:
        held = app.send_task("hold", (path,), queue=queue)
        wait_for_start(path)
        first.kill()
    release(path)
    with Worker(url, prefix, f"{path}.second", queues=queue):
        assert result(held) is True


def test_a_worker_that_lost_its_connection_works_on(
    app: Application, url: str, prefix: str, path: str
) -> None:
    queue = f"{prefix}.cut"
    with Relay(url) as relay, Worker(relay.url, prefix, f"{path}.cut", queues=queue):
        assert result(app.send_task("add", (1, 2), queue=queue)) == 3
        before = relay.accepted
        relay.cut()
        assert result(app.send_task("add", (3, 4), queue=queue)) == 7
        assert relay.accepted > before


def test_tasks_outlive_a_broker_killed_with_sigkill(broker: BrokerProcess, path: str) -> None:
    """Every task whose sending returned is run, by a worker that finds the broker again."""
    with Relay(broker.url) as relay:
        app = make(relay.url, "killed")
        for number in range(20):
            app.send_task("note", (path, str(number)), ignore_result=True)
        with Worker(relay.url, "killed", f"{path}.worker"):
            wait_until(lambda: os.path.exists(path), "a task ran", WAIT_S)
            broker.kill()
            broker.start()
            relay.target(broker.url)

            def noted() -> set[str]:
                with open(path, encoding="utf-8") as file:
                    return set(file.read().split())

            wanted = {str(number) for number in range(20)}
            wait_until(lambda: noted() == wanted, "all tasks ran", WAIT_S)
        close(app)
