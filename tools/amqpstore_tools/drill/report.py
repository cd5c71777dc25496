"""The results of a drill: on the terminal, as JSON, and as a page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from amqpstore.system.files import naming
from amqpstore_tools.drill.page import page
from amqpstore_tools.drill.verdict import INVARIANTS, NAMED, Account, Verdict
from amqpstore_tools.offline import terminal
from amqpstore_tools.offline.reports import is_data_directory, write_drill_report

if TYPE_CHECKING:
    from rich.console import Console

_BUT_NAMED = ", except for what the damage took, which is named"


def print_account(account: Account) -> None:
    """Print the actions of a scenario, and its verdicts, to stdout."""
    # Imported here, so that the other verbs start without it.
    from rich.table import Table
    from rich.text import Text

    console = terminal.console(soft_wrap=True)
    if account.left_out:
        _print_last(console, account.summary, "bold")
        return
    did = ", ".join(f"{count:,} {what}" for what, count in sorted(account.did.items()))
    console.print(
        Text(f"{account.scenario}: seed {account.seed}, {did}, {account.seconds:.1f} s", "bold")
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    is_damaged = bool(account.did[NAMED])
    for invariant, verdict in account.verdicts.items():
        style = {Verdict.HELD: "green", Verdict.VIOLATED: "bold red"}.get(verdict, "dim")
        checks = account.checks[invariant]
        table.add_row(
            Text(f"  {invariant}"),
            Text(verdict.value, style),
            Text(f"{checks:,}" if checks else "", "dim", justify="right"),
            Text(INVARIANTS[invariant] + (_BUT_NAMED if is_damaged and invariant == "I1" else "")),
        )
    console.print(table)
    # The first of each invariant, as most of the others repeat it.
    firsts = {finding.invariant: finding for finding in reversed(account.findings)}
    for finding in firsts.values():
        console.print(Text(f"  {finding.invariant} violated: {finding.text}", "red"))
        console.print(Text(f"    at {finding.where}"))
        console.print(Text(f"    reproduce: {finding.reproduce}"))
    if more := len(account.findings) - len(firsts):
        console.print(Text(f"  and {more} more violations"))
    _print_last(console, account.summary, "bold" if account.is_passed else "bold red")


def print_last(accounts: Sequence[Account]) -> None:
    """Print the verdict on all scenarios of a drill, as its last line."""
    failed = [one.scenario for one in accounts if one.findings]
    untried = [one.scenario for one in accounts if not (one.findings or one.is_passed)]
    text = f"drill failed: {', '.join(failed)}" if failed else "drill passed"
    if not failed and len(untried) == len(accounts):
        text = "drill: nothing was checked"
    elif untried:
        text += f"; not exercised: {', '.join(untried)}"
    _print_last(terminal.console(), text, "bold red" if failed else "bold")


def _print_last(console: Console, text: str, style: str) -> None:
    """Print a line that is read, and not copied: a terminal has it wrapped between words."""
    from rich.text import Text

    console.print(Text(text, style), soft_wrap=False)


def as_json(accounts: Sequence[Account]) -> str:
    """Return everything as JSON."""
    return json.dumps(
        {
            "version": version("amqpstore"),
            "violated": any(account.findings for account in accounts),
            "invariants": INVARIANTS,
            "scenarios": [_plain(account) for account in accounts],
        },
        indent=1,
    )


def write(accounts: Sequence[Account], path: str) -> list[str]:
    """Write `path`.json and `path`.html, or if `path` is a data directory, among its reports.

    Returns the names of what is written. Raises: OSError.
    """
    if is_data_directory(path):
        return [write_drill_report(path, as_json(accounts))]
    written = {f"{path}.json": as_json(accounts), f"{path}.html": page(accounts)}
    for name, text in written.items():
        with naming(name), open(name, "w", encoding="utf-8") as file:
            file.write(text)
    return list(written)


def _plain(account: Account) -> dict[str, object]:
    verdicts = {name: verdict.value for name, verdict in account.verdicts.items()}
    return {
        "scenario": account.scenario,
        "seed": account.seed,
        "left_out": account.left_out,
        "summary": account.summary,
        "seconds": round(account.seconds, 3),
        "did": dict(account.did),
        "verdicts": verdicts,
        "checks": dict(account.checks),
        "findings": [dataclasses.asdict(finding) for finding in account.findings],
        "timeline": [dataclasses.asdict(step) for step in account.timeline],
    }
