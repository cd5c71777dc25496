"""One disturbance after the other, each beside a quiet client of its own."""

import time

from amqpstore_tools.bench.board import now_ns
from amqpstore_tools.bench.server_process import ServerProcess
from amqpstore_tools.client.errors import BenchError, PeerError
from tests.bench.interference.quiet import QuietClient, histogram
from tests.bench.interference.run import in_turn, product_of
from tests.bench.stalls.cases import DISTURBANCES
from tests.bench.stalls.report import Stall, StallReport
from tests.bench.stalls.settings import StallSettings

_AFTERMATH_S = 0.5  # work that a broker does after its answer stalls others too


def run(settings: StallSettings) -> StallReport:
    """Measure all of them. Raises: BenchError, UsageError."""
    server = ServerProcess.find(settings.address, settings.pid)
    product, version = product_of(settings.address)
    stalls = {name: _measured(settings, name, server) for name in in_turn(settings.only)}
    return StallReport(settings, product, version, stalls)


def _measured(settings: StallSettings, name: str, server: ServerProcess | None) -> Stall:
    """Measure one of them; if the broker refuses it, the result has the reason."""
    kind = DISTURBANCES[name]
    count = settings.scaled(kind)
    disturbance = kind(settings.address, f"{settings.queue}-{name}", count, settings.timeout)
    disturbance.finish()  # remains of a run that was killed
    disturbance = kind(settings.address, f"{settings.queue}-{name}", count, settings.timeout)
    try:
        disturbance.prepare()
        quiet_queue = f"{settings.queue}-quiet"
        with QuietClient(settings.address, quiet_queue, settings.timeout) as quiet:
            quiet.wait_until_ready()
            alone_ns = now_ns()
            time.sleep(settings.lead)
            cpu_s = server.cpu_s() if server else 0.0
            began_ns = now_ns()
            disturbance.disturb()
            ended_ns = now_ns()
            time.sleep(_AFTERMATH_S)
            until_ns = now_ns()
            cpu_s = (server.cpu_s() if server else 0.0) - cpu_s
            waits = quiet.finish()
    except PeerError as error:
        return Stall(count, refused=str(error))
    except OSError as error:
        raise BenchError(f"{name}: {error}") from None
    finally:
        disturbance.finish()
    return Stall(
        count,
        took_s=(ended_ns - began_ns) / 1e9,
        server_cpu_s=cpu_s if server else None,
        alone=histogram(waits.confirms, alone_ns, began_ns),
        confirm=histogram(waits.confirms, began_ns, until_ns),
        answer_alone=histogram(waits.answers, alone_ns, began_ns),
        answer=histogram(waits.answers, began_ns, until_ns),
    )
