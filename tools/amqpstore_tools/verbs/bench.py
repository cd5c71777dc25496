"""`amqpstore bench`: measures a broker, or several by turns."""

import argparse
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from amqpstore_tools.bench import workload
from amqpstore_tools.bench.options import add_options, defaults_of
from amqpstore_tools.bench.settings import ABOUT, BenchSettings
from amqpstore_tools.client.errors import BenchError, CommandLineError
from amqpstore_tools.compare import run as compare_run
from amqpstore_tools.compare import settings as compare_settings
from amqpstore_tools.compare.settings import CompareSettings

# As in offline/exits.py, which would load the engine.
_USAGE, _FAILED, _INTERRUPTED = 2, 5, 130


class PrintableReport(Protocol):
    """The result of a benchmark."""

    def as_json(self) -> str:
        """Return the result as JSON on one line."""

    def print_table(self) -> None:
        """Print a table to standard output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the workload and its options.

    An option that was not given parses as None, so that `BenchSettings.of` can tell it from one
    that the workload does not take.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Measure an AMQP 0-9-1 broker, or several by turns (compare). "
        "amqpstore bench WORKLOAD --help explains the options. Workloads and their defaults:\n"
    ) + "\n".join(f"  {name:8}  {about}\n{defaults_of(name)}" for name, about in ABOUT.items())
    workloads = parser.add_subparsers(dest="workload", metavar="WORKLOAD", required=True)
    common = argparse.ArgumentParser(add_help=False)
    add_options(common)
    for name, about in ABOUT.items():
        workloads.add_parser(name, parents=[common], help=about, description=about)
    about = "several brokers by turns: medians and ratios of their rates"
    compare_settings.add_arguments(workloads.add_parser("compare", help=about))


def run(args: argparse.Namespace) -> int:
    """Run one benchmark; returns the exit code."""

    def measured() -> PrintableReport:
        if args.workload == "compare":
            return compare_run.run(CompareSettings.of(args))
        return workload.run(BenchSettings.of(args))

    return report_on("amqpstore bench", measured, as_json=args.json)


def report_on(program: str, measured: Callable[[], PrintableReport], *, as_json: bool) -> int:
    """Run a benchmark and print its report; returns the exit code.

    Args: program, which its errors name; measured, runs the benchmark.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        report = measured()
    except CommandLineError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return _USAGE
    except (BenchError, OSError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted\n")
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    if as_json:
        sys.stdout.write(report.as_json() + "\n")
    else:
        report.print_table()
    return 0


def _interrupt(_number: int, _stack: FrameType | None) -> None:
    raise KeyboardInterrupt
