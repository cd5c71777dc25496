"""`amqpstore bench`: measure a broker, or the engine by itself."""

import argparse
import signal
import sys
from types import FrameType

from amqpstore_tools.bench import workload
from amqpstore_tools.bench.attacks import run as attacks_run
from amqpstore_tools.bench.attacks import settings as attack_settings
from amqpstore_tools.bench.attacks.report import AttackReport
from amqpstore_tools.bench.attacks.settings import AttackSettings
from amqpstore_tools.bench.options import add_options, defaults_of
from amqpstore_tools.bench.report import Report
from amqpstore_tools.bench.settings import ABOUT, BenchSettings
from amqpstore_tools.bench.stalls import run as stalls_run
from amqpstore_tools.bench.stalls import settings as stall_settings
from amqpstore_tools.bench.stalls.report import StallReport
from amqpstore_tools.bench.stalls.settings import StallSettings
from amqpstore_tools.bench.store import run as store_run
from amqpstore_tools.bench.store import settings as store_settings
from amqpstore_tools.bench.store.report import StoreReport
from amqpstore_tools.bench.store.settings import StoreSettings
from amqpstore_tools.client.errors import BenchError, CommandLineError
from amqpstore_tools.compare import run as compare_run
from amqpstore_tools.compare import settings as compare_settings
from amqpstore_tools.compare.report import CompareReport
from amqpstore_tools.compare.settings import CompareSettings

# As in offline/exits.py, which would load the engine.
_USAGE, _FAILED, _INTERRUPTED = 2, 5, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the workload and its options.

    An option that was not given parses as None, so that `BenchSettings.of` can tell it from one
    that the workload does not take.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Measure an AMQP 0-9-1 broker, several by turns (compare), how long one holds clients up "
        "(stalls), what they have left beside an attack (attacks), or the storage engine alone "
        "(store). "
        "amqpstore bench WORKLOAD --help explains the options. Workloads and their defaults:\n"
    ) + "\n".join(f"  {name:8}  {about}\n{defaults_of(name)}" for name, about in ABOUT.items())
    workloads = parser.add_subparsers(dest="workload", metavar="WORKLOAD", required=True)
    common = argparse.ArgumentParser(add_help=False)
    add_options(common)
    for name, about in ABOUT.items():
        workloads.add_parser(name, parents=[common], help=about, description=about)
    about = "the storage engine alone, without a broker"
    store_settings.add_arguments(workloads.add_parser("store", help=about, description=about))
    about = "how long a quiet client waits while another makes the broker work"
    stall_settings.add_arguments(workloads.add_parser("stalls", help=about))
    about = "what others have of a broker while one client attacks it"
    attack_settings.add_arguments(workloads.add_parser("attacks", help=about))
    about = "several brokers by turns: medians and ratios of their rates"
    compare_settings.add_arguments(workloads.add_parser("compare", help=about))


def run(args: argparse.Namespace) -> int:
    """Run one benchmark; returns the exit code."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        report: Report | StoreReport | StallReport | AttackReport | CompareReport
        if args.workload == "store":
            report = store_run.run(StoreSettings.of(args))
        elif args.workload == "stalls":
            report = stalls_run.run(StallSettings.of(args))
        elif args.workload == "attacks":
            report = attacks_run.run(AttackSettings.of(args))
        elif args.workload == "compare":
            report = compare_run.run(CompareSettings.of(args))
        else:
            report = workload.run(BenchSettings.of(args))
    except CommandLineError as error:
        sys.stderr.write(f"amqpstore bench: {error}\n")
        return _USAGE
    except (BenchError, OSError) as error:
        sys.stderr.write(f"amqpstore bench: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        sys.stderr.write("amqpstore bench: interrupted\n")
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    if args.json:
        sys.stdout.write(report.as_json() + "\n")
    else:
        report.print_table()
    return 0


def _interrupt(_number: int, _stack: FrameType | None) -> None:
    raise KeyboardInterrupt
