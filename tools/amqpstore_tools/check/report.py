"""Prints a check's findings on the terminal: the worst first, grouped by code, and what to do
next.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from amqpstore_tools.check.findings import CODES, Finding, Severity
from amqpstore_tools.check.store import Checked
from amqpstore_tools.offline import terminal

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_MAX_SHOWN = 12
"""Findings shown for one code; `--json` has all of them."""


def print_report(checked: Checked, directory: str, console: Console) -> None:
    """Print everything that a person has to know."""
    for severity in Severity:
        if found := checked.findings.of(severity):
            _print_group(severity, found, console)
    console.print(_looked_at(checked), highlight=False)
    console.print(_verdict(checked), highlight=False)
    if checked.is_damaged:
        console.print("Next:", style="bold")
        name = shlex.quote(directory)
        for command, what in (
            (
                f"amqpstore repair {name} --plan FILE",
                "show what can be repaired, and what would be lost",
            ),
            (f"amqpstore check {name} --json", "show all findings"),
        ):
            console.print(f"  {command}   {what}", highlight=False, soft_wrap=True)


def _print_group(severity: Severity, found: Sequence[Finding], console: Console) -> None:
    plural = "" if len(found) == 1 else "s"
    console.print(Text(f"{len(found):,} {severity}{plural}", _COLOURS[severity]))
    table = terminal.table("code", "where", "queue", "what", wrap="where queue what")
    for code, of_code in _by_code(found):
        for index, one in enumerate(of_code[:_MAX_SHOWN]):
            shown = Text(code if not index else "", style=_COLOURS[severity])
            table.add_row(
                shown, *(terminal.shown(text) for text in (_where(one), _queue(one), one.text))
            )
        if rest := of_code[_MAX_SHOWN:]:
            messages = sum(one.messages for one in rest)
            about = f", {messages:,} messages" if messages else ""
            table.add_row("", Text(f"... {len(rest):,} more{about}", style="dim"), "", "")
    console.print(table)
    console.print()


def _by_code(found: Sequence[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    for code in CODES:
        if of_code := [one for one in found if one.code == code]:
            yield code, of_code


def _where(one: Finding) -> str:
    return one.file if one.offset < 0 else f"{one.file} @{one.offset}"


def _queue(one: Finding) -> str:
    if not one.queue_id:
        return ""
    return f"{one.queue} ({one.queue_id})" if one.queue else str(one.queue_id)


def _looked_at(checked: Checked) -> str:
    size = terminal.size(checked.segment_bytes)
    text = f"Checked segments: {checked.segments:,} ({size}),"
    text = f"{text} index files: {checked.index_files:,}"
    if checked.is_compared:
        text = f"{text}, queues: {checked.queues:,}, messages in them: {checked.messages:,}"
    if checked.prepared:
        text = f"{text}, prepared transactions: {checked.prepared:,}"
    rate = terminal.size(int(checked.segment_bytes / max(checked.cpu_seconds, 1e-3)))
    text = f"{text}. It took {checked.seconds:.1f} s, at {rate} per second of one core"
    return f"{text}. Nothing was changed."


def _verdict(checked: Checked) -> Text:
    findings = checked.findings
    errors, warnings = findings.of(Severity.ERROR), findings.of(Severity.WARNING)
    if not (errors or warnings):
        return Text("The store is sound.", style="bold green")
    lost = sum(one.messages for one in errors if one.code == "message-lost")
    text = f"The store is not sound. Errors: {len(errors):,}, warnings: {len(warnings):,}"
    if lost:
        text = f"{text}, messages in queues that cannot be read: {lost:,}"
    if missing := checked.shortfall.lost:
        text = f"{text}, durable messages that are missing in the log: {missing:,} at least"
    return Text(f"{text}.", style=_COLOURS[Severity.ERROR if errors else Severity.WARNING])
