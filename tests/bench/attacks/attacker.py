"""The process of an attack, and of what it is compared with."""

import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

from amqpstore_tools.bench.fleet import cpu_s
from tests.bench.attacks.attack import Attack
from tests.bench.forked import ForkedProcess

_PREPARE_LIMIT_S = 300.0
_FINISH_LIMIT_S = 60.0
_SLICE_S = 0.01


class Attacker(ForkedProcess):
    """Runs an attack in a process of its own. Leaving the context ends it."""

    def __init__(self, attack: Attack | None, burn_share: float = 0.0) -> None:
        """Starts the process. Without an attack it only uses a share of a processor's time."""
        super().__init__("attacker", lambda pipe: _work(attack, burn_share, pipe))
        self.receive(_PREPARE_LIMIT_S)

    def begin(self) -> None:
        """Begin, now that all is prepared."""
        self.send("begin")

    def end(self) -> float:
        """End it, and clean up. Returns the seconds of processor time that it used.

        Raises: BenchError, if it failed.
        """
        self.send("end")
        used_s = self.receive(_FINISH_LIMIT_S)
        assert isinstance(used_s, float)
        self.receive(_FINISH_LIMIT_S)
        return used_s


def _work(attack: Attack | None, burn_share: float, pipe: Pipe) -> None:
    if attack is None:
        _do(lambda: _burn(burn_share), pipe)
    else:
        try:
            attack.prepare()
            _do(attack.step, pipe)
        finally:
            attack.finish()
    pipe.send("cleaned up")


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
