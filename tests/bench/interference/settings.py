"""The options that `bench stalls` and `bench attacks` share, checked."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from amqpstore_tools.bench.settings import DEFAULT_URL
from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError

_MAX_COUNT = 100_000_000


class Case(Protocol):
    """A kind of work that holds others up."""

    about: ClassVar[str]
    count: ClassVar[int]


@dataclass(frozen=True)
class CaseSettings:
    """The cases to run, on which broker, and how much of each."""

    address: Address
    pid: int  # of the broker; 0: the process that listens on the port
    queue: str
    scale: float  # of the cases' counts
    only: list[str]

    def parameters(self) -> dict[str, object]:
        """Return everything that influences the run, for the report, except the password."""
        address = self.address
        return {
            "host": address.host,
            "port": address.port,
            "vhost": address.vhost,
            "scale": self.scale,
        }

    def scaled(self, case: type[Case]) -> int:
        """Return how many there are of what a case has much of."""
        return max(1, min(_MAX_COUNT, round(case.count * self.scale)))


def checked(args: argparse.Namespace, noun: str, cases: Mapping[str, type[Case]]) -> dict[str, Any]:
    """Return the fields of `CaseSettings` of a parsed command line.

    Args: noun, what a case is called; cases, all of them by name.
    Raises: CommandLineError.
    """
    if unknown := sorted(set(args.only) - set(cases)):
        raise CommandLineError(
            f"there is no {noun} {unknown[0]!r}: it is one of {', '.join(cases)}"
        )
    check_range(args, "scale", 100)
    return {
        "address": Address.parse(args.url),
        "pid": args.pid,
        "queue": args.queue,
        "scale": args.scale,
        "only": args.only or list(cases),
    }


def check_range(args: argparse.Namespace, name: str, most: float) -> None:
    """Make sure that a number is above 0 and not above the most. Raises: CommandLineError."""
    if not 0 < getattr(args, name) <= most:
        given = getattr(args, name)
        raise CommandLineError(f"--{name} must be above 0 and up to {most}, not {given}")


def add_case_arguments(
    parser: argparse.ArgumentParser, noun: str, cases: Mapping[str, type[Case]]
) -> None:
    """Add the options, and append the cases to the description. Args: as of `checked`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    rows = [f"  {name:18}{case.count:>9,}  {case.about}" for name, case in cases.items()]
    parser.description = "\n".join([parser.description or "", *rows])
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help=f"one {noun} or more (default: all)"
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help="URL of the broker (default: %(default)s)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="F", help="factor for all counts (default: 1)"
    )
    parser.add_argument(
        "--queue",
        default="amqpstore-bench",
        metavar="NAME",
        help="prefix of the queue names (default: %(default)s)",
    )
    parser.add_argument(
        "--pid",
        type=int,
        default=0,
        help="process id of the broker, for its processor time and memory (default: the process "
        "that listens on the port)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
