"""The settings of a run of `bench stalls`, checked."""

import argparse
from dataclasses import dataclass

from tests.bench.interference.settings import (
    CaseSettings,
    add_case_arguments,
    check_range,
    checked,
)
from tests.bench.stalls.cases import DISTURBANCES

_MAX_S = 86_400


@dataclass(frozen=True)
class StallSettings(CaseSettings):
    """One run."""

    lead: float  # seconds that the quiet client is alone, for comparison
    timeout: float  # seconds after which a disturbance is given up

    def parameters(self) -> dict[str, object]:
        """Return everything that influences the run, for the report, except the password."""
        return {**super().parameters(), "lead": self.lead, "timeout": self.timeout}

    @classmethod
    def of(cls, args: argparse.Namespace) -> "StallSettings":
        """Return the settings of a parsed command line. Raises: CommandLineError."""
        found = checked(args, "disturbance", DISTURBANCES)
        for name in ("lead", "timeout"):
            check_range(args, name, _MAX_S)
        return cls(**found, lead=args.lead, timeout=args.timeout)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "A quiet client publishes 200 messages per second, and makes as many requests that need "
        "no disk.\nIts waits are measured while another client does each of these:"
    )
    add_case_arguments(parser, "disturbance", DISTURBANCES)
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
