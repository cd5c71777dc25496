"""A process of the benchmark's own, at the other end of a pipe."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Self

from amqpstore_tools.bench.fleet import end_process
from amqpstore_tools.client.errors import BenchError, PeerError


class ForkedProcess:
    """Does `work` with one end of a pipe. Leaving the context ends it.

    Args: name, for errors.
    """

    def __init__(self, name: str, work: Callable[[Pipe], None]) -> None:
        self._name = name
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(name, work, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.terminate()
        end_process(self._process)
        self._pipe.close()

    def send(self, word: str) -> None:
        """Send a word to it."""
        self._pipe.send(word)

    def receive(self, timeout_s: float) -> object:
        """Return what it sends. Raises: BenchError, also what it has raised."""
        if not self._pipe.poll(timeout_s):
            raise BenchError(f"the {self._name} gave no answer in {timeout_s:.0f} s")
        try:
            report: object = self._pipe.recv()
        except EOFError:
            raise BenchError(f"the process of the {self._name} died") from None
        if isinstance(report, BaseException):
            raise report
        return report


def _run(name: str, work: Callable[[Pipe], None], pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        work(pipe)
    except EOFError:
        pass  # the parent is gone
    except BenchError as error:
        pipe.send(error)
    except OSError as error:
        pipe.send(PeerError(f"the {name} lost its connection to the broker: {error}"))
