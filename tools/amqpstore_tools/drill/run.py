"""One run of one scenario: its bounds, its seed, and its findings."""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from amqpstore_tools.drill.verdict import Account, DrillFinding, Step
from amqpstore_tools.offline.exits import UsageError

_MAX_FINDINGS = 50
"""The most findings of one run: then it ends, as more would only repeat them."""

OF_THE_STORE = ("messages in the store", "queues in the store")
"""Facts in an account that are about the store of the drill, not about what was done."""

_MANUAL_ROUNDS = 10
"""One round out of this many also takes all steps of the manual, which need as long as the rest."""

_MAX_STEPS = 5_000
"""The most steps of a timeline."""


class LeftOutError(UsageError):
    """A scenario cannot work on this copy of a data directory; the message says why."""


@dataclass(frozen=True)
class DrillSettings:
    """The settings from the command line.

    `seconds`, `images` and `rounds` bound a run; None means no bound. `round`: only this one,
    counted from 1. `operations`: length of the one history that is drilled, for scenarios with
    histories; `part`, from 1, selects a part of it, None all. `data`: a real data directory, which
    is copied to `work`, an empty directory.
    """

    seed: str
    work: str
    seconds: float | None = None
    images: int | None = None
    round: int | None = None
    data: str | None = None
    operations: int | None = None
    rounds: int | None = None
    share: int | None = None


class DrillRun:
    """One run of the scenario `name`; `show` is called with it after every action."""

    def __init__(
        self,
        name: str,
        settings: DrillSettings,
        show: Callable[[DrillRun], None] = lambda _run: None,
    ) -> None:
        self.settings = settings
        self.account = Account(name, settings.seed)
        self.images = 0
        """Disks that were recovered and checked: --images counts these."""
        self.round = 0
        self.rounds_follow = False
        """Whether a round continues where the one before it ended, each with one disk to check."""
        self.doing = ""
        """The work that takes longer than the rest of a round, while it is done."""
        self._show = show
        self._start = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether a bound is reached."""
        settings = self.settings
        return (
            (settings.images is not None and self.images >= settings.images)
            or (settings.seconds is not None and self.elapsed_s >= settings.seconds)
            or len(self.account.findings) >= _MAX_FINDINGS
        )

    @property
    def follows_manual(self) -> bool:
        """Whether the steps of the manual are done in this round."""
        return self.round % _MANUAL_ROUNDS == 1

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start

    @property
    def fraction(self) -> float:
        """The progress of the run towards the nearest of its bounds, 0 to 1."""
        settings = self.settings
        done = [0.0]
        if settings.images:
            done.append(self.images / settings.images)
        if settings.seconds:
            done.append(self.elapsed_s / settings.seconds)
        if settings.rounds:
            done.append(self.account.did["rounds"] / settings.rounds)
        return min(1.0, max(done))

    def begin(self) -> None:
        """Let the time of the run begin now, after what a scenario has to prepare first."""
        self._start = time.monotonic()

    def rounds(self) -> Iterator[random.Random]:
        """Yield a random generator for each round, from the seed and the round's number alone."""
        number = self.settings.round or 1
        while not self.is_over:
            self.round = number
            yield self.rng("round")
            self.account.did["rounds"] += 1
            number += 1
            if self.settings.round or number - 1 == self.settings.rounds:
                return

    def rng(self, purpose: str) -> random.Random:
        """Return a random generator for this round that depends on nothing before it."""
        return random.Random(f"{self.settings.seed} {self.round} {purpose}")  # noqa: S311 (no secret)

    def rng_of_all(self, purpose: str) -> random.Random:
        """Return a random generator that is the same in every round."""
        return random.Random(f"{self.settings.seed} {purpose}")  # noqa: S311 (no secret)

    def saw(self, invariants: Iterable[str], images: int = 1) -> None:
        """Note that `images` disks were examined for these invariants."""
        self.images += images
        self.account.did["disks recovered"] += images
        self.account.checked(invariants, images)

    def found(self, invariant: str, text: str, where: str) -> None:
        """Note a violation in this round."""
        known = {(finding.invariant, finding.text) for finding in self.account.findings}
        if (invariant, text) not in known:
            finding = DrillFinding(invariant, text, where, self.command())
            self.account.findings.append(finding)

    def join(self, account: Account) -> None:
        """Add what a round did and found that ran elsewhere."""
        ours = self.account
        self.images += account.did["disks recovered"]
        for what, count in account.did.items():
            if what in OF_THE_STORE:
                ours.did[what] = count
            elif what == "rounds" and self.settings.operations:
                # Of each part.
                ours.did[what] = max(ours.did[what], count)
            else:
                ours.did[what] += count
        ours.checks.update(account.checks)
        for found in account.findings:
            known = {(finding.invariant, finding.text) for finding in ours.findings}
            if (found.invariant, found.text) not in known and len(known) < _MAX_FINDINGS:
                ours.findings.append(found)
        ours.timeline += account.timeline[: max(_MAX_STEPS - len(ours.timeline), 0)]

    def step(self, step: Step) -> None:
        """Note what was done, and show the progress."""
        if len(self.account.timeline) < _MAX_STEPS:
            self.account.timeline.append(step)
        self.show()

    def show(self, doing: str = "") -> None:
        """Show the progress. Args: doing, what is done from now on, if it takes long."""
        self.doing = doing
        self._show(self)

    def end(self) -> Account:
        """Return what the run found."""
        self.account.seconds = self.elapsed_s
        return self.account

    def command(self) -> str:
        """Return the command that repeats this round."""
        words = ["amqpstore", "drill", self.account.scenario, "--seed", self.settings.seed]
        which = "--images" if self.rounds_follow else "--round"
        words += [which, str(self.round)]
        if self.settings.operations:
            words += ["--operations", str(self.settings.operations)]
        if self.settings.data:
            words += ["--data", self.settings.data]
        return shlex.join(words)
