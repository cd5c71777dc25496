"""Opens and closes connections as fast as the broker manages."""

import threading

from amqpstore_tools.bench.board import now_ns
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.worker import BenchWorker, WorkerReport
from amqpstore_tools.client.connection import Connection
from amqpstore_tools.client.errors import BenchError


def connect_again_and_again(worker: BenchWorker) -> WorkerReport:
    """Run a worker with `--connections` threads; each connects, opens a channel, closes both,
    repeats.

    Threads suffice, since each waits for the broker nearly all the time. The outcome's histogram
    `connect` has the duration of one such round, within the measured window.
    """
    settings = worker.settings
    Connection(settings.address).close()  # reports a broker that is not running before the start
    schedule = worker.start()
    latency = Histogram()
    lock = threading.Lock()
    connected = 0
    failures: list[Exception] = []

    def loop() -> None:
        nonlocal connected
        try:
            began = now_ns()
            while began < schedule.stop_ns and not failures:
                Connection(settings.address).close()
                ended = now_ns()
                with lock:
                    connected += 1
                    worker.row.connecting(connected, ended)
                    if schedule.in_window(began):
                        latency.record(ended - began)
                began = ended
        except (BenchError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(settings.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return WorkerReport(histograms={"connect": latency})
