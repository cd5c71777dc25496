"""`amqpstore drill`: breaks a store that may be broken, and shows what survives."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import random
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator

from amqpstore_tools.drill import report
from amqpstore_tools.drill.board import board
from amqpstore_tools.drill.run import DrillSettings, LeftOutError
from amqpstore_tools.drill.scenarios import SCENARIOS
from amqpstore_tools.drill.scenarios.rounds import ON_ONE_MACHINE, TaskExecutor, drill
from amqpstore_tools.drill.verdict import Account
from amqpstore_tools.offline.exits import DAMAGED, OK, UsageError, exit_codes, run_tool
from amqpstore_tools.spark.engine import SPARK, add_engine
from amqpstore_tools.spark.requirements import require_spark

_DEFAULT_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scenario and its options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Break a throw-away store, or a copy of a real one, and check that everything promised "
        "survives. Scenarios:\n"
        + "\n".join(f"  {name:13}  {scenario.about}" for name, scenario in SCENARIOS.items())
        + "\n  all            each of these in turn"
    )
    parser.epilog = textwrap.fill(exit_codes("a promise was broken"))
    parser.add_argument("scenario", metavar="SCENARIO", choices=[*SCENARIOS, "all"])
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="drill a copy of this data directory, which is only read (default: a new store)",
    )
    parser.add_argument(
        "--seed",
        help="seed of the run; the same seed repeats the same run (default: random, and shown)",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        metavar="N",
        help=f"seconds for each scenario (default {_DEFAULT_SECONDS:.0f}, if nothing else limits "
        f"it)",
    )
    parser.add_argument(
        "--images",
        type=_positive(int),
        metavar="N",
        help="stop after about N recovered disk images",
    )
    parser.add_argument(
        "--round", type=_positive(int), metavar="N", help="run only round N of the seed"
    )
    parser.add_argument("--rounds", type=_positive(int), metavar="N", help="stop after N rounds")
    parser.add_argument(
        "--operations",
        type=_positive(int),
        metavar="N",
        help="power-cut: drill a single history of N client operations, with more images of it in "
        "each round (default: a short history per round)",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write the results to FILE.json and FILE.html; if it is a data directory, to its "
        "reports/, which the web pages of its broker show",
    )
    parser.add_argument(
        "--work", metavar="DIR", help="directory for copies (default: a temporary one)"
    )
    here = ", ".join(ON_ONE_MACHINE)
    add_engine(parser, f"all rounds except those of {here} are distributed over a cluster")


def run(arguments: argparse.Namespace) -> int:
    """Run the drill. Returns the exit code."""
    # The log of a broken store is part of the drill, not of the output.
    logging.getLogger("amqpstore").addHandler(logging.NullHandler())
    # Thousands of stores a minute, and hardly any reference cycles among them.
    gc.set_threshold(100_000, 50, 100)
    return run_tool("drill", lambda: _drill(arguments))


def _drill(arguments: argparse.Namespace) -> int:
    accounts = _run(arguments)
    if arguments.report:
        written = report.write(accounts, arguments.report)
        sys.stdout.write(f"report: {' '.join(written)}\n")
    if len(accounts) > 1:
        report.print_last(accounts)
    return DAMAGED if any(account.findings for account in accounts) else OK


def _run(arguments: argparse.Namespace) -> list[Account]:
    names = list(SCENARIOS) if arguments.scenario == "all" else [arguments.scenario]
    data = os.path.realpath(arguments.data) if arguments.data else None
    work = _checked_work(arguments.work, data)
    seed = arguments.seed or str(random.SystemRandom().randrange(1_000_000))
    seconds = arguments.seconds
    if not (seconds or arguments.images or arguments.round or arguments.rounds):
        seconds = _DEFAULT_SECONDS
    accounts = []
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(_executor(arguments))
        for name in names:
            directory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="amqpstore-drill-", dir=work)
            )
            settings = DrillSettings(
                seed,
                directory,
                seconds,
                arguments.images,
                arguments.round,
                data,
                arguments.operations,
                arguments.rounds,
            )
            with board(name, settings) as show:
                try:
                    accounts.append(drill(name, settings, executor, show))
                except LeftOutError as error:
                    if arguments.scenario != "all":
                        raise
                    accounts.append(Account(name, seed, left_out=str(error)))
            report.print_account(accounts[-1])
            shutil.rmtree(directory)
    return accounts


@contextlib.contextmanager
def _executor(arguments: argparse.Namespace) -> Iterator[TaskExecutor | None]:
    """Start the drill that the options of `add_engine` select. Raises: SparkMissingError,
    JobError.
    """
    if arguments.engine != SPARK:
        yield None
        return
    require_spark()
    # Imported here, so that the other verbs start without Spark.
    from amqpstore_tools.spark.cluster import cluster
    from amqpstore_tools.spark.drill import SparkTasks

    with cluster(arguments.master, "drill") as spark:
        yield SparkTasks(spark)


def _checked_work(work: str | None, data: str | None) -> str | None:
    """Return where copies go. Raises: UsageError, when that is within the directory to copy."""
    if work is None:
        return None
    path = os.path.realpath(work)
    if data and os.path.commonpath([path, data]) == data:
        raise UsageError(f"--work {work} is in the data directory, which is only read")
    if not os.path.isdir(path):
        raise UsageError(f"--work {work} is not a directory")
    return path


def _positive(kind: type[float]) -> type[float]:
    def parse(text: str) -> float:
        number = kind(text)
        if number <= 0:
            raise argparse.ArgumentTypeError("it must be positive")
        return number

    parse.__name__ = kind.__name__
    return parse  # type: ignore[return-value] # argparse calls it as it would call the type
