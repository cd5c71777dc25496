"""The process of an attack, and of what it is compared with."""

import multiprocessing
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Self

from amqpstore_tools.bench.attacks.attack import Attack
from amqpstore_tools.bench.fleet import cpu_s, end_process
from amqpstore_tools.client.errors import BenchError

_PREPARE_LIMIT_S = 300.0
_FINISH_LIMIT_S = 60.0
_SLICE_S = 0.01


class Attacker:
    """Runs an attack in a process of its own. Leaving the context ends it."""

    def __init__(self, attack: Attack | None, burn_share: float = 0.0) -> None:
        """Starts the process. Without an attack it only uses a share of a processor's time."""
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(attack, burn_share, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._receive(_PREPARE_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.terminate()
        end_process(self._process)
        self._pipe.close()

    def begin(self) -> None:
        """Begin, now that all is prepared."""
        self._pipe.send("begin")

    def end(self) -> float:
        """End it, and clean up. Returns the seconds of processor time that it used.

        Raises: BenchError, if it failed.
        """
        self._pipe.send("end")
        used_s = self._receive(_FINISH_LIMIT_S)
        assert isinstance(used_s, float)
        self._receive(_FINISH_LIMIT_S)
        return used_s

    def _receive(self, timeout_s: float) -> object:
        if not self._pipe.poll(timeout_s):
            raise BenchError(f"no answer in {timeout_s:.0f} s")
        try:
            report: object = self._pipe.recv()
        except EOFError:
            raise BenchError("its process died") from None
        if isinstance(report, BaseException):
            raise report
        return report


def _work(attack: Attack | None, burn_share: float, pipe: Pipe) -> None:
    """Run the process from start to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        if attack is None:
            _do(lambda: _burn(burn_share), pipe)
            pipe.send("cleaned up")
            return
        try:
            attack.prepare()
            _do(attack.step, pipe)
        finally:
            attack.finish()
        pipe.send("cleaned up")
    except EOFError:
        pass  # the parent is gone
    except (BenchError, OSError) as error:
        pipe.send(BenchError(str(error)))


def _do(step: Callable[[], None], pipe: Pipe) -> None:
    pipe.send("ready")
    pipe.recv()
    before_s = cpu_s(resource.RUSAGE_SELF)
    while not pipe.poll():
        step()
    pipe.recv()
    pipe.send(cpu_s(resource.RUSAGE_SELF) - before_s)


def _burn(share: float) -> None:
    """Use a share of the processor's time in a slice."""
    began = time.monotonic()
    used_until = time.process_time() + share * _SLICE_S
    while time.process_time() < used_until:
        pass
    time.sleep(max(0.0, _SLICE_S - (time.monotonic() - began)))
