"""The settings of a run of `bench attacks`, checked."""

import argparse
from dataclasses import dataclass

from amqpstore_tools.bench.attacks.catalog import ATTACKS
from amqpstore_tools.bench.settings import DEFAULT_URL
from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError

_MAX_ROUNDS = 1000
_MAX_SECONDS = 600


@dataclass(frozen=True)
class AttackSettings:
    """One run."""

    address: Address
    pid: int  # of the broker; 0: the process that listens on the port
    queue: str
    scale: float  # of the attacks' counts
    seconds: float  # of a round
    rounds: int
    only: list[str]

    def parameters(self) -> dict[str, object]:
        """Return everything that influences the run, for the report, except the password."""
        address = self.address
        return {
            "host": address.host,
            "port": address.port,
            "vhost": address.vhost,
            "scale": self.scale,
            "seconds": self.seconds,
            "rounds": self.rounds,
        }

    @classmethod
    def of(cls, args: argparse.Namespace) -> "AttackSettings":
        """Return the settings of a parsed command line. Raises: UsageError."""
        if unknown := sorted(set(args.only) - set(ATTACKS)):
            raise CommandLineError(
                f"there is no attack {unknown[0]!r}: it is one of {', '.join(ATTACKS)}"
            )
        for name, most in (("scale", 100), ("seconds", _MAX_SECONDS), ("rounds", _MAX_ROUNDS)):
            if not 0 < getattr(args, name) <= most:
                given = getattr(args, name)
                raise CommandLineError(f"--{name} must be above 0 and up to {most}, not {given}")
        return cls(
            address=Address.parse(args.url),
            pid=args.pid,
            queue=args.queue,
            scale=args.scale,
            seconds=args.seconds,
            rounds=args.rounds,
            only=args.only or list(ATTACKS),
        )

    def count_of(self, name: str) -> int:
        """Return how many there are of what an attack has much of."""
        return max(1, round(ATTACKS[name].count * self.scale))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "A publisher with confirms and a consumer work at full speed, others log in. What they\n"
        "have is measured while another client attacks the broker, and by turns while a process\n"
        "only uses as much processor time as the attack. Attack only what is yours:\n"
    ) + "\n".join(f"  {name:18}{kind.count:>7,}  {kind.about}" for name, kind in ATTACKS.items())
    parser.add_argument("only", nargs="*", metavar="NAME", help="an attack (default: all)")
    parser.add_argument(
        "--url", default=DEFAULT_URL, help="URL of the broker (default: %(default)s)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="F", help="factor for all counts (default: 1)"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round (default: 3)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds with and without each attack (default: 3)"
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
        help="process id of the broker, for its memory (default: the process that listens on the "
        "port)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
