"""All workloads on all brokers, by turns."""

import datetime
import sys
from typing import Any

from amqpstore_tools.bench import workload
from amqpstore_tools.client.connection import Address, Connection
from amqpstore_tools.client.errors import BenchError
from amqpstore_tools.compare.page import page
from amqpstore_tools.compare.report import ComparedBroker, CompareReport
from amqpstore_tools.compare.settings import CompareSettings
from amqpstore_tools.compare.summary import Rounds


def run(settings: CompareSettings) -> CompareReport:
    """Run them, and write the page.

    A workload that fails on one broker is reported as failed there, and the others continue.

    Raises:
        BenchError: a broker cannot be reached at the start.
    """
    started = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    brokers = _brokers(settings)
    measured = {
        name: Rounds(kind, [[] for _ in brokers], [""] * len(brokers))
        for name, kind in settings.workloads.items()
    }
    for number in range(settings.rounds):
        for name, rounds in measured.items():
            # The first one has a cooler machine and a quieter disk.
            order = range(len(brokers))
            for broker in order if number % 2 == 0 else reversed(order):
                _say(f"round {number + 1} of {settings.rounds}: {name} on {brokers[broker].label}")
                results, failure = _results(settings, name, broker)
                rounds.results[broker].append(results)
                rounds.failures[broker] = failure or rounds.failures[broker]
    report = CompareReport(settings, started.isoformat(), brokers, measured)
    if settings.page:
        # Imported here, so that the generator of the load does not load the engine.
        from amqpstore_tools.offline.output import output_file

        with output_file(settings.page) as file:
            file.write(page(report).encode())
    return report


def _results(
    settings: CompareSettings, name: str, broker: int
) -> tuple[dict[str, Any] | None, str]:
    """Return the results of one run, or why it failed."""
    try:
        return workload.run(settings.settings(name, broker)).results(), ""
    except (BenchError, OSError) as error:
        _say(f"{name} failed: {error}")
        return None, str(error)


def _brokers(settings: CompareSettings) -> list[ComparedBroker]:
    """Return what runs at each address."""
    brokers: list[ComparedBroker] = []
    for url, label in zip(settings.urls, settings.labels, strict=True):
        address = Address.parse(url)
        connection = Connection(address)
        connection.close()
        product, version = connection.product, connection.version
        shown = label or f"{product} {version}"
        if shown in [broker.label for broker in brokers]:
            shown = f"{shown} ({address})"
        brokers.append(ComparedBroker(shown, str(address), product, version))
    return brokers


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
