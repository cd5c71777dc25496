"""The settings of a run of `bench store`, checked: each workload's options and defaults."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields

from amqpstore_tools.client.errors import CommandLineError

_FILLING: dict[str, object] = {"messages": 1_000_000, "size": 1024, "batch": 1000, "inline": False}
# The options of each workload, with their defaults.
WORKLOADS: Mapping[str, Mapping[str, object]] = {
    "fill": _FILLING,
    "memory": _FILLING,
    "restart": {**_FILLING, "messages": 10_000_000, "size": 100, "runs": 1},
    "churn": {
        "volume_bytes": 10_000_000_000,
        "size": 1024,
        "batch": 1000,
        "immortal": 1,
        "inline": False,
    },
    "fanout": {**_FILLING, "messages": 100_000, "queues": 100},
}
ABOUT = {
    "fill": "publish to one queue, then read and ack everything from disk in a new process",
    "memory": "resident memory during and after a fill",
    "restart": "fill and kill -9, then the time until a new process has the count and the first "
    "message",
    "churn": "messages pass through a queue while others stay: disk, stalls, compaction",
    "fanout": "bytes written per message for one queue and for --queues",
}


@dataclass(frozen=True)
class StoreSettings:
    """One run. Options that the workload does not take have values that are ignored."""

    workload: str
    data: str  # the directory to create; empty for one in the system's temporary directory
    keep: bool
    timeout: float  # seconds until a process of the run is given up
    messages: int = 0
    size: int = 1024  # bytes of a body
    batch: int = 1000  # messages that one fdatasync makes durable
    inline: bool = False  # whether to wait for the fdatasync before the next publish
    runs: int = 1
    volume_bytes: int = 0  # bytes of bodies that pass through
    immortal: int = 1  # messages that stay, spread evenly over those that pass
    queues: int = 1

    def parameters(self) -> dict[str, object]:
        """Return everything that influences the run, for the report."""
        return {name: getattr(self, name) for name in WORKLOADS[self.workload]}

    @classmethod
    def of(cls, args: argparse.Namespace) -> "StoreSettings":
        """Return the settings of a parsed command line. Raises: UsageError."""
        workload: str = args.store_workload
        chosen = {
            field.name: getattr(args, field.name)
            for field in fields(cls)
            if hasattr(args, field.name) and field.name != "workload"
        }
        settings = cls(workload, **chosen)
        if settings.timeout <= 0:
            raise CommandLineError(f"--timeout must be above 0, not {settings.timeout}")
        for name, lowest, highest in _RANGES:
            number = getattr(settings, name)
            if name in WORKLOADS[workload] and not lowest <= number <= highest:
                raise CommandLineError(
                    f"{_option(name)} must be {lowest} to {highest}, not {number}"
                )
        return settings


_RANGES = (
    ("messages", 1, 10**10),
    ("size", 1, 128 * 1024 * 1024),
    ("batch", 1, 1_000_000),
    ("runs", 1, 1000),
    ("volume_bytes", 1, 10**15),
    ("immortal", 0, 1_000_000),
    ("queues", 2, 10_000),
)
_HELP = {
    "messages": ("N", "messages to publish"),
    "size": ("BYTES", "size of a message body"),
    "batch": ("N", "messages that one fdatasync makes durable"),
    "runs": ("N", "stores to fill, kill and open"),
    "volume_bytes": ("BYTES", "bytes of message bodies that pass through"),
    "immortal": ("N", "messages that stay, spread evenly over the run"),
    "queues": ("N", "queues that each message goes to; compared with one queue"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the workloads of the store, each a parser with its own options."""
    workloads = parser.add_subparsers(dest="store_workload", metavar="WORKLOAD", required=True)
    for name, about in ABOUT.items():
        taken = workloads.add_parser(name, help=about, description=about)
        taken.add_argument(
            "--data",
            default="",
            metavar="DIR",
            help="directory for the store, created and removed (default: a temporary one)",
        )
        taken.add_argument("--keep", action="store_true", help="do not remove the directory")
        taken.add_argument(
            "--timeout",
            type=float,
            default=3600.0,
            metavar="SECONDS",
            help="give up when a process of the run takes longer (default %(default)s)",
        )
        taken.add_argument("--json", action="store_true", help="print one JSON object")
        for option, default in WORKLOADS[name].items():
            if option == "inline":
                taken.add_argument(
                    _option(option),
                    action="store_true",
                    help="wait for each fdatasync instead of publishing during it",
                )
                continue
            metavar, summary = _HELP[option]
            taken.add_argument(
                _option(option),
                dest=option,
                type=int,
                default=default,
                metavar=metavar,
                help=f"{summary} (default %(default)s)",
            )


def _option(name: str) -> str:
    return "--bytes" if name == "volume_bytes" else f"--{name}"
