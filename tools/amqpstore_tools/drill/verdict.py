"""The verdicts of a drill: each invariant held, was violated, or was not tested."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

INVARIANTS = {
    "I1": "each confirmed message is there, once in each of its queues",
    "I2": "nothing else is there, and bodies are identical",
    "I3": "one publish is in all of its queues or in none",
    "I4": "a transaction is all or nothing, acks included",
    "I5": "a promised ack is never undone, a delivery is counted",
    "I6": "each queue keeps its order",
    "I7": "a message that is moved is either in the source or in the target",
    "I8": "reference counts are right, and referenced messages exist",
    "I9": "opening succeeds, in bounded memory, or says why it does not",
    "I10": "damage is reported and contained",
    "I11": "files unknown to the store are untouched",
    "I12": "counts equal a recount",
    "I13": "due work is done: checkpoints are made in time, and garbage is removed from disk",
    "I14": "check, export, repair and restore, as the manual has them, keep all that is intact",
    "I15": "a sync of this disk is one: what it has promised survives a power cut",
}
"""By name, in the order in which they are shown."""


NAMED = "messages named as damaged or lost"
"""In what was done: messages that a store did not serve, and reported, of all rounds together."""


class Verdict(enum.Enum):
    """The verdict on one invariant."""

    HELD = "held"
    VIOLATED = "violated"
    NOT_EXERCISED = "not exercised"


@dataclass(frozen=True)
class DrillFinding:
    """A violation; `reproduce` is the command that shows it again."""

    invariant: str
    text: str
    where: str
    reproduce: str


@dataclass(frozen=True)
class Step:
    """One line of the timeline: what was done, and how many of the promised messages survived.

    `promised` messages had to survive it; `least` and `most` of all that was seen did survive;
    `named` were not served, and reported as damaged.
    """

    round: int
    number: int
    did: str
    promised: int
    least: int
    most: int
    named: int = 0
    is_violated: bool = False


@dataclass
class Account:
    """The actions and findings of one scenario. `checks` counts how often each invariant was
    checked; `left_out` says why nothing was done.
    """

    scenario: str
    seed: str
    did: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    findings: list[DrillFinding] = field(default_factory=list)
    timeline: list[Step] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Parts that could not be tried here, and why."""

    seconds: float = 0.0
    left_out: str = ""

    def checked(self, invariants: Iterable[str], times: int = 1) -> None:
        """Note that these were checked."""
        for invariant in invariants:
            self.checks[invariant] += times

    def verdict(self, invariant: str) -> Verdict:
        """Return whether the invariant held wherever it was checked."""
        if any(finding.invariant == invariant for finding in self.findings):
            return Verdict.VIOLATED
        return Verdict.HELD if self.checks[invariant] else Verdict.NOT_EXERCISED

    @property
    def is_passed(self) -> bool:
        """Whether something was checked, and all of that held."""
        return not (self.findings or self.left_out) and bool(self.checks)

    @property
    def summary(self) -> str:
        """The last line: passed or failed, what was damaged on purpose, and what was not tried."""
        if self.left_out:
            return f"{self.scenario}: not exercised: {self.left_out}"
        broken = [name for name, one in self.verdicts.items() if one is Verdict.VIOLATED]
        untried = [name for name, one in self.verdicts.items() if one is Verdict.NOT_EXERCISED]
        parts = [f"failed: {', '.join(broken)}" if broken else "passed"]
        if not (self.checks or broken):
            parts = ["nothing was checked"]
        if named := self.did[NAMED]:
            what = "message was" if named == 1 else "messages were"
            parts.append(f"{named:,} {what} not served because of the damage, and named")
        if untried or self.unknown:
            parts.append("; ".join(["not exercised: " + ", ".join(untried), *self.unknown]))
        return f"{self.scenario}: {'; '.join(parts)}"

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on every invariant, in order."""
        return {invariant: self.verdict(invariant) for invariant in INVARIANTS}
