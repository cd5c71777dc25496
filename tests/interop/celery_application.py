"""A Celery application: the tasks that the workers of the Celery tests run.

A worker finds its broker and the prefix of all its names in the environment. Results come back
over AMQP (`rpc://`). Tasks that a test must see or hold meet it in files.
"""

import os
import signal
import time
from typing import Any

from celery import Celery
from kombu import Queue

URL_VARIABLE = "AMQPSTORE_CELERY_URL"
PREFIX_VARIABLE = "AMQPSTORE_CELERY_PREFIX"
HOLD_TIMEOUT_S = 60.0
POLL_S = 0.01
HIGHEST_PRIORITY = 10


def make(url: str, prefix: str) -> Any:
    """The application. Every name it uses at the broker starts with the prefix."""
    app = Celery("interop", broker=url, backend="rpc://", set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        control_exchange=f"{prefix}.control",
        event_exchange=f"{prefix}.events",
        event_queue_prefix=f"{prefix}.events",
        enable_utc=True,
        result_expires=600,
        task_acks_late=True,
        task_default_queue=prefix,
        task_queues=[Queue(prefix, max_priority=HIGHEST_PRIORITY)],
        task_queue_max_priority=HIGHEST_PRIORITY,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
    )
    app.task(name="add")(add)
    app.task(name="total")(total)
    app.task(name="fail")(fail)
    app.task(name="now")(now)
    app.task(name="hold", bind=True)(hold)
    app.task(name="note")(note)
    app.task(name="flaky", bind=True, max_retries=5)(flaky)
    app.task(name="die_once", bind=True)(die_once)
    app.task(name="progress", bind=True)(progress)
    return app


def add(x: int, y: int) -> int:
    return x + y


def total(numbers: list[int]) -> int:
    return sum(numbers)


def fail(why: str) -> None:
    raise ValueError(why)


def now() -> float:
    """Return the time when the task ran, in seconds since 1970."""
    return time.time()


def note(path: str, line: str) -> None:
    """Append a line to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def hold(self: Any, path: str) -> bool:
    """Write `{path}.started`, then wait for `{path}.release`. True when it was delivered before."""
    note(f"{path}.started", str(os.getpid()))
    deadline = time.monotonic() + HOLD_TIMEOUT_S
    while not os.path.exists(f"{path}.release"):
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(POLL_S)
    return bool(self.request.delivery_info["redelivered"])


def flaky(self: Any, failures: int) -> int:
    """Fail `failures` times, each time asking for a retry. Returns the number of retries."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


def die_once(self: Any, path: str) -> bool:
    """SIGKILL the process that runs it, the first time. True when it was delivered before."""
    if not os.path.exists(path):
        note(path, str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return bool(self.request.delivery_info["redelivered"])


def progress(self: Any, steps: int) -> str:
    """Tell the caller of every step before the result."""
    for step in range(steps):
        self.update_state(state="PROGRESS", meta={"step": step})
    return "done"


if URL_VARIABLE in os.environ:
    app = make(os.environ[URL_VARIABLE], os.environ[PREFIX_VARIABLE])
