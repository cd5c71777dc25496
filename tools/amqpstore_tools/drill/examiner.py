"""Opens a damaged store, takes everything in it, and reports it, in a process of its own.

A truncated catalog may kill the process that reads it, and a broken store may take any time or
memory; here that is a finding, and the drill continues. One line of JSON on stdin names a
directory, and one on stdout is the answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import resource
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from amqpstore import MessageDamagedError, Options, Queue, ReadLaterError, Store, StoreError
from amqpstore.upkeep.worker import InlineWorker

_COMMAND = (sys.executable, "-P", "-m", "amqpstore_tools.drill.examiner")
_MEMORY_BYTES = 1 << 30
_TIMEOUT_S = 60.0

_OPTIONS = Options(
    checkpoint_bytes=1 << 60,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1 << 60,
    reserve_bytes=0,
    least_free_bytes=0,
)


@dataclass
class TakenMessages:
    """Everything taken from a queue: `messages` are sequence, message id and digest, in that order.

    The queue reported `said` ready messages; `damaged` and `unreadable` are those it could not
    deliver.
    """

    said: int = 0
    messages: list[tuple[int, int, str]] = field(default_factory=list)
    damaged: int = 0
    unreadable: int = 0


@dataclass
class Examined:
    """The result for a store: `error` why it did not open, `is_explained` whether it says what is
    wrong with which file; or its queues by id, and what recovery reported as damaged or lost.
    """

    error: str = ""
    is_explained: bool = False
    queues: dict[int, TakenMessages] = field(default_factory=dict)
    damage: list[tuple[str, int, int, str]] = field(default_factory=list)
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    torn_bytes: int = 0
    rolled_back: int = 0


class Examiner:
    """The process, seen from outside; it is started when it is needed, and restarted after it died.

    Args: command, to run.
    """

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end()

    def examine(self, directory: str) -> Examined:
        """Open the store in `directory`, and take everything that it holds."""
        process = self._started()
        if process.stdin is None:
            raise RuntimeError("stdin is not a pipe")
        process.stdin.write(json.dumps(directory).encode() + b"\n")
        process.stdin.flush()
        line = self._line(process)
        if line is None:
            self._end()
            return Examined(f"opening did not end within {_TIMEOUT_S:.0f} s")
        if not line.endswith(b"\n"):
            code = process.wait()
            self._end()
            return Examined(f"opening killed the process (exit code {code})")
        plain = json.loads(line)
        queues = {
            int(queue_id): TakenMessages(
                **{**row, "messages": [tuple(one) for one in row["messages"]]}
            )
            for queue_id, row in plain.pop("queues").items()
        }
        examined = Examined(**plain)
        examined.queues = queues
        return examined

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 (our own command)
                self._command,
                cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    @staticmethod
    def _line(process: subprocess.Popen[bytes]) -> bytes | None:
        """Return a line, or what arrived before the process ended; None when nothing more
        arrives.
        """
        if process.stdout is None:
            raise RuntimeError("stdout is not a pipe")
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + _TIMEOUT_S
        parts: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not parts or not parts[-1].endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(descriptor, 1 << 20)
                if not chunk:
                    break
                parts.append(chunk)
        return b"".join(parts)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def examine_here(directory: str) -> Examined:
    """Examine a store in this process."""
    try:
        store = Store.open(directory, options=_OPTIONS, worker=InlineWorker())
    except StoreError as error:
        return Examined(f"{type(error).__name__}: {error}", is_explained=directory in str(error))
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        return Examined(repr(error))
    report = store.recovery_report
    examined = Examined(
        damage=report.damage,
        lost=report.lost,
        torn_bytes=report.torn_bytes,
        rolled_back=report.rolled_back,
    )
    try:
        for queue in store.queues.values():
            examined.queues[queue.id] = _taken(store, queue)
        store.sync()
        store.upkeep.checkpoint()
    except OSError:
        # A file that is missing or cannot be read postpones a checkpoint; that is not damage.
        pass
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        examined.error = f"it was opened, and then using it failed: {error!r}"
    store.abandon()
    return examined


def _taken(store: Store, queue: Queue) -> TakenMessages:
    before = queue.quarantined.count, queue.unreadable_count
    taken = TakenMessages(queue.ready_count)
    while queue.ready_count:
        run = store.take(queue, 100, acked=True)
        if run is None or isinstance(run, ReadLaterError):
            break
        if isinstance(run, MessageDamagedError):
            continue
        for index, message in enumerate(run.messages or ()):
            envelope = message.envelope
            whole = (envelope.exchange, envelope.routing_key, envelope.properties, message.body)
            digest = digest_of(*whole)
            taken.messages.append((run.first_sequence + index, run.id_at(index), digest))
    taken.damaged = queue.quarantined.count - before[0]
    taken.unreadable = queue.unreadable_count - before[1]
    return taken


def digest_of(exchange: str, routing_key: str, properties: bytes, body: bytes) -> str:
    """Return what stands for a message in a comparison."""
    whole = repr((exchange, routing_key, properties, body)).encode()
    return hashlib.blake2b(whole, digest_size=12).hexdigest()


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    # Damage may kill the process in many rounds, and none is to leave a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A damaged store also reports what it logs, and the report is shown.
    logging.getLogger("amqpstore").addHandler(logging.NullHandler())
    for line in sys.stdin.buffer:
        found: dict[str, Any] = dataclasses.asdict(examine_here(json.loads(line)))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
