"""One attack after the other, each by turns with a process that only uses as much processor time.

The attack shares the machine with the broker and with those that it serves: what they lose because
the attack itself is at work is not the broker's fault. So each round of an attack is compared with
a round in which another process uses as much processor time as the attack did.
"""

import time

from amqpstore_tools.bench.server_process import ServerProcess
from amqpstore_tools.client.errors import BenchError
from tests.bench.attacks.attack import Attack
from tests.bench.attacks.attacker import Attacker
from tests.bench.attacks.catalog import ATTACKS
from tests.bench.attacks.others import Others, Slice
from tests.bench.attacks.report import AttackReport, AttackResult
from tests.bench.attacks.settings import AttackSettings
from tests.bench.interference.run import in_turn, product_of

_LEAD_S = 0.3
_SETTLED_WITHIN_S = 30.0
"""amqpstore gives memory back some ten seconds after a crowd has left."""
_SETTLED_BYTES = 16 << 20
_TIMEOUT_S = 3600.0


def run(settings: AttackSettings) -> AttackReport:
    """Measure all of them. Raises: BenchError, UsageError."""
    server = ServerProcess.find(settings.address, settings.pid)
    product, version = product_of(settings.address)
    outcomes = {name: _measured(settings, name, server) for name in in_turn(settings.only)}
    return AttackReport(settings, product, version, outcomes)


def _measured(settings: AttackSettings, name: str, server: ServerProcess | None) -> AttackResult:
    """Measure one of them; if it cannot be done here, the result has the reason."""
    kind = ATTACKS[name]
    count = settings.scaled(kind)
    attack = kind(settings.address, f"{settings.queue}-{name}", count)
    outcome = AttackResult(count)
    with Others(settings.address, settings.queue, _TIMEOUT_S) as others:
        others.watch(_LEAD_S, server)
        outcome.rss_before_bytes = server.rss_bytes() if server else 0
        try:
            for _ in range(settings.rounds):
                _round(settings, attack, others, server, outcome)
        except BenchError as error:
            outcome.failed = str(error)
        else:
            outcome.confirm_alone, outcome.confirm = others.confirms(
                [outcome.alone, outcome.attacked]
            )
    if server is not None:
        # Once the others have stopped: beside other processes they publish faster than they
        # consume, and what waits for them is memory of theirs.
        outcome.rss_after_bytes = _settled_bytes(server, outcome.rss_before_bytes)
    return outcome


def _round(
    settings: AttackSettings,
    attack: Attack,
    others: Others,
    server: ServerProcess | None,
    outcome: AttackResult,
) -> None:
    """One round with the attack, and one with its processor time. Raises: BenchError."""
    with Attacker(attack) as attacker:
        outcome.attacked.append(_slice(settings, attacker, others, server))
        share = attacker.end() / settings.seconds
    with Attacker(None, min(1.0, share)) as burner:
        outcome.alone.append(_slice(settings, burner, others, server))
        burner.end()


def _slice(
    settings: AttackSettings, attacker: Attacker, others: Others, server: ServerProcess | None
) -> Slice:
    attacker.begin()
    time.sleep(_LEAD_S)
    return others.watch(settings.seconds, server)


def _settled_bytes(server: ServerProcess, before_bytes: int) -> int:
    """Return the memory once it is what it was, or after some seconds."""
    ends_at = time.monotonic() + _SETTLED_WITHIN_S
    while time.monotonic() < ends_at:
        if server.rss_bytes() < before_bytes + _SETTLED_BYTES:
            break
        time.sleep(0.1)
    return server.rss_bytes()
