"""The settings of a run of `bench compare`, checked."""

import argparse
import shlex
from dataclasses import dataclass

from amqpstore_tools.bench.options import parsed
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.client.errors import CommandLineError
from amqpstore_tools.compare.workloads import WORKLOADS, NamedWorkload

_TIMED = ("through", "fanout", "sync", "batches", "fill", "connect", "latency")


@dataclass(frozen=True)
class CompareSettings:
    """One run."""

    urls: list[str]
    pids: list[int]  # of the brokers; 0: the process that listens on the port
    labels: list[str]  # empty: product and version
    rounds: int
    workloads: dict[str, NamedWorkload]
    page: str  # file; empty: none

    def settings(self, name: str, broker: int) -> BenchSettings:
        """Return the settings of one run of a workload. Raises: CommandLineError."""
        workload = self.workloads[name]
        target = ("--url", self.urls[broker], "--pid", str(self.pids[broker]))
        try:
            return parsed([*workload.arguments, *target])
        except CommandLineError as error:
            raise CommandLineError(f"{shlex.join(workload.arguments)}: {error}") from None

    @classmethod
    def of(cls, args: argparse.Namespace) -> "CompareSettings":
        """Return the settings of a parsed command line. Raises: CommandLineError."""
        urls = args.url or []
        if len(urls) < 2:
            raise CommandLineError("compare needs at least two --url")
        if args.rounds < 1:
            raise CommandLineError(f"--rounds must be 1 or more, not {args.rounds}")
        if args.seconds <= 0:
            raise CommandLineError(f"--seconds must be above 0, not {args.seconds}")
        if args.backlog < 1:
            raise CommandLineError(f"--backlog must be 1 or more, not {args.backlog}")
        for name in ("pid", "label"):
            if len(getattr(args, name)) not in (0, len(urls)):
                raise CommandLineError(f"give --{name} for none of the brokers, or for each")
        settings = cls(
            urls,
            args.pid or [0] * len(urls),
            args.label or [""] * len(urls),
            args.rounds,
            _workloads(args),
            args.page,
        )
        for name in settings.workloads:
            for broker in range(len(urls)):
                settings.settings(name, broker)
        return settings


def _workloads(args: argparse.Namespace) -> dict[str, NamedWorkload]:
    """Return the selected workloads, each with its duration."""
    if args.arguments:
        if args.only:
            raise CommandLineError("give --only, or a workload after --, not both")
        if args.arguments[0] == "drain":
            raise CommandLineError("drain empties the queue: compare backlog, which fills it")
        workloads = {args.arguments[0]: NamedWorkload(shlex.join(args.arguments), ())}
        lines = {args.arguments[0]: list(args.arguments)}
    else:
        if unknown := sorted(set(args.only) - set(WORKLOADS)):
            raise CommandLineError(
                f"there is no workload {unknown[0]!r}: it is one of {', '.join(WORKLOADS)}"
            )
        workloads = {name: WORKLOADS[name] for name in args.only or WORKLOADS}
        lines = {name: list(workload.arguments) for name, workload in workloads.items()}
    for line in lines.values():
        if line[0] in _TIMED and not {"--seconds", "--messages"} & set(line):
            line += ["--seconds", f"{args.seconds:g}"]
        elif line[0] == "backlog" and "--messages" not in line:
            line += ["--messages", str(args.backlog)]
    return {
        name: NamedWorkload(workload.title, tuple(lines[name]))
        for name, workload in workloads.items()
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = (
        "amqpstore bench compare --url A --url B [options] [--only NAME ... | -- WORKLOAD ...]"
    )
    parser.description = (
        "Run workloads on several brokers by turns, in an order that changes from round to round,\n"
        "and show medians and ratios. The first broker is compared with each other one.\n"
        "Workloads:\n"
    ) + "\n".join(f"  {name:15} {shlex.join(kind.arguments)}" for name, kind in WORKLOADS.items())
    parser.add_argument("--url", action="append", help="URL of a broker; give two or more")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        help="name of each broker in the result (default: its product and version)",
    )
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        help="process id of each broker (default: the process that listens on the port)",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="number of rounds (default: 3)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="how long each timed workload is measured (default: 5)",
    )
    parser.add_argument(
        "--backlog",
        type=int,
        default=1_000_000,
        metavar="N",
        help="messages of the workload backlog (default: 1000000)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="a workload to run; may be repeated (default: all)",
    )
    parser.add_argument("--page", default="", metavar="FILE", help="write a page with charts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("arguments", nargs="*", metavar="WORKLOAD", help=argparse.SUPPRESS)
