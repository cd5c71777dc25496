"""The settings of a run of `bench attacks`, checked."""

import argparse
from dataclasses import dataclass

from tests.bench.attacks.catalog import ATTACKS
from tests.bench.interference.settings import (
    CaseSettings,
    add_case_arguments,
    check_range,
    checked,
)

_MAX_ROUNDS = 1000
_MAX_SECONDS = 600


@dataclass(frozen=True)
class AttackSettings(CaseSettings):
    """One run."""

    seconds: float  # of a round
    rounds: int

    def parameters(self) -> dict[str, object]:
        """Return everything that influences the run, for the report, except the password."""
        return {**super().parameters(), "seconds": self.seconds, "rounds": self.rounds}

    @classmethod
    def of(cls, args: argparse.Namespace) -> "AttackSettings":
        """Return the settings of a parsed command line. Raises: CommandLineError."""
        found = checked(args, "attack", ATTACKS)
        check_range(args, "seconds", _MAX_SECONDS)
        check_range(args, "rounds", _MAX_ROUNDS)
        return cls(**found, seconds=args.seconds, rounds=args.rounds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "A publisher with confirms and a consumer work at full speed, others log in. What they\n"
        "have is measured while another client attacks the broker, and by turns while a process\n"
        "only uses as much processor time as the attack. Attack only what is yours:"
    )
    add_case_arguments(parser, "attack", ATTACKS)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round (default: 3)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds with and without each attack (default: 3)"
    )
