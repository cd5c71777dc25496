"""The settings of a run of `bench stalls`, checked."""

import argparse
from dataclasses import dataclass

from amqpstore_tools.bench.settings import DEFAULT_URL
from amqpstore_tools.bench.stalls.cases import DISTURBANCES
from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError

_MAX_COUNT = 100_000_000


@dataclass(frozen=True)
class StallSettings:
    """One run."""

    address: Address
    pid: int  # of the broker; 0: the process that listens on the port
    queue: str
    scale: float  # of the disturbances' counts
    lead: float  # seconds that the quiet client is alone, for comparison
    timeout: float  # seconds after which a disturbance is given up
    only: list[str]

    def parameters(self) -> dict[str, object]:
        """Return everything that influences the run, for the report, except the password."""
        address = self.address
        return {
            "host": address.host,
            "port": address.port,
            "vhost": address.vhost,
            "scale": self.scale,
            "lead": self.lead,
            "timeout": self.timeout,
        }

    @classmethod
    def of(cls, args: argparse.Namespace) -> "StallSettings":
        """Return the settings of a parsed command line. Raises: UsageError."""
        if unknown := sorted(set(args.only) - set(DISTURBANCES)):
            raise CommandLineError(
                f"there is no disturbance {unknown[0]!r}: it is one of {', '.join(DISTURBANCES)}"
            )
        if not 0 < args.scale <= 100:
            raise CommandLineError(f"--scale must be above 0 and up to 100, not {args.scale}")
        for name in ("lead", "timeout"):
            if getattr(args, name) <= 0:
                raise CommandLineError(f"--{name} must be above 0, not {getattr(args, name)}")
        return cls(
            address=Address.parse(args.url),
            pid=args.pid,
            queue=args.queue,
            scale=args.scale,
            lead=args.lead,
            timeout=args.timeout,
            only=args.only or list(DISTURBANCES),
        )

    def count_of(self, name: str) -> int:
        """Return how many times a disturbance is repeated."""
        return max(1, min(_MAX_COUNT, round(DISTURBANCES[name].count * self.scale)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "A quiet client publishes 200 messages per second, and makes as many requests that need "
        "no disk.\nIts waits are measured while another client does each of these:\n"
    ) + "\n".join(
        f"  {name:18}{kind.count:>9,}  {kind.about}" for name, kind in DISTURBANCES.items()
    )
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help="a disturbance to measure (default: all)"
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help="URL of the broker (default: %(default)s)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="F", help="factor for all counts (default: 1)"
    )
    parser.add_argument(
        "--lead",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="how long to measure the quiet client alone first (default: 1)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="give a disturbance up after this long (default: 600)",
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
        help="process id of the broker, for its CPU time (default: the process that listens on "
        "the port)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
