"""The command line of these benchmarks."""

import argparse
from collections.abc import Sequence

from amqpstore_tools.verbs.bench import PrintableReport, report_on
from tests.bench.attacks import run as attacks_run
from tests.bench.attacks import settings as attack_settings
from tests.bench.stalls import run as stalls_run
from tests.bench.stalls import settings as stall_settings
from tests.bench.store import run as store_run
from tests.bench.store import settings as store_settings


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure how long a broker holds clients up (stalls), what they have left "
        "beside an attack (attacks), or the storage engine alone (store).",
    )
    workloads = found.add_subparsers(dest="workload", metavar="WORKLOAD", required=True)
    about = "how long a quiet client waits while another makes the broker work"
    stall_settings.add_arguments(workloads.add_parser("stalls", help=about))
    about = "what others have of a broker while one client attacks it"
    attack_settings.add_arguments(workloads.add_parser("attacks", help=about))
    about = "the storage engine alone, without a broker"
    store_settings.add_arguments(workloads.add_parser("store", help=about, description=about))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark; returns the exit code."""
    args = parser().parse_args(arguments)

    def measured() -> PrintableReport:
        if args.workload == "stalls":
            return stalls_run.run(stall_settings.StallSettings.of(args))
        if args.workload == "attacks":
            return attacks_run.run(attack_settings.AttackSettings.of(args))
        return store_run.run(store_settings.StoreSettings.of(args))

    return report_on("python -m tests.bench", measured, as_json=args.json)
