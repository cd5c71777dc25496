"""A plan, and its result, on the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from amqpstore_tools.offline import terminal
from amqpstore_tools.repair.journal import Repair
from amqpstore_tools.repair.plan import RepairPlan

_MAX_SHOWN = 8
"""Steps shown for one code; the plan's file has all of them."""

_COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def print_plan(plan: RepairPlan, directory: str, path: str, console: Console) -> None:
    """Print everything that a person has to know before it is carried out."""
    if not plan.steps:
        console.print(Text("The store is sound: there is nothing to repair.", "bold green"))
        console.print(f"{path} is a plan with no steps.", highlight=False)
        return
    console.print(terminal.heading(f"{_counted(len(plan.steps), 'finding')}"))
    _print_steps(plan, console)
    if plan.queues:
        console.print(terminal.heading("What the queues hold afterwards"))
        _print_queues(plan, console)
    for note in plan.notes:
        console.print(Text.assemble(("note ", "cyan"), terminal.shown(note)))
    console.print()
    console.print(_files(plan), highlight=False)
    lost = max(sum(queue["lost"] for queue in plan.queues), plan.missing_messages)
    if plan.is_log_lost:
        known = f"At least {_counted(lost, 'message')} lost" if lost else "No known message is lost"
        text = f"{known}, but a part of the log is: nothing tells what was published in it."
        console.print(Text(text, "bold red"))
    elif lost:
        text = f"Lost: {_counted(lost, 'message')}. Their remains are kept."
        console.print(Text(text, "bold red"))
    else:
        console.print(Text("No known message is lost.", "bold green"))
    console.print("Nothing was changed. Next:", style="bold")
    name, file = shlex.quote(directory), shlex.quote(path)
    console.print(f"  amqpstore repair {name} --apply {file}", highlight=False, soft_wrap=True)


def print_applied(
    plan: RepairPlan, repair: Repair | None, directory: str, console: Console
) -> None:
    """Print what was done."""
    if repair is None:
        console.print(Text("The plan has no steps: nothing was changed.", "bold green"))
        return
    if plan.queues:
        _print_queues(plan, console)
        console.print()
    console.print(Text("The store is repaired, and a check of it is clean.", "bold green"))
    text = f"Replaced files are in {terminal.shown(directory)}/{repair.name}/: remove them once the"
    console.print(f"{text} store has proved good.", highlight=False, soft_wrap=True)
    console.print("To undo it, before the store is used:", style="bold")
    console.print(
        f"  amqpstore repair {shlex.quote(directory)} --undo", highlight=False, soft_wrap=True
    )


def _print_steps(plan: RepairPlan, console: Console) -> None:
    table = terminal.table("code", "where", "what", "then", wrap="where what then")
    for code, steps in _by_code(plan.steps):
        for index, step in enumerate(steps[:_MAX_SHOWN]):
            where = step["file"] if "offset" not in step else f"{step['file']} @{step['offset']}"
            queue = f"queue {step.get('queue') or step['queue_id']}: " if "queue_id" in step else ""
            then = step["does"] if not index else ""
            table.add_row(
                Text(code if not index else "", style=_COLOURS[step["severity"]]),
                terminal.shown(where),
                terminal.shown(f"{queue}{step['found']}"),
                then,
            )
        if (rest := len(steps) - _MAX_SHOWN) > 0:
            table.add_row("", Text(f"... {rest:,} more", style="dim"), "", "")
    console.print(table)


def _by_code(steps: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    codes = dict.fromkeys(step["code"] for step in steps)
    for code in codes:
        yield code, [step for step in steps if step["code"] == code]


def _print_queues(plan: RepairPlan, console: Console) -> None:
    table = terminal.table(
        *("queue", "kept", "redelivered", "may be served again", "lost"),
        right="kept redelivered lost",
        wrap="queue",
    )
    table.columns[3].justify = "right"
    for queue in plan.queues:
        name = terminal.shown(queue["name"])
        table.add_row(
            Text(f"{name} (recovered)" if queue["is_recovered"] else name),
            *(f"{queue[key]:,}" for key in ("kept", "redelivered")),
            Text(f"{queue['again']:,}", "yellow" if queue["again"] else ""),
            Text(f"{queue['lost']:,}", "bold red" if queue["lost"] else ""),
        )
    console.print(table)


def _files(plan: RepairPlan) -> str:
    made = f"{_counted(len(plan.makes), 'file')} written"
    moved = f"{_counted(len(plan.moves), 'file')} moved to quarantine"
    how = "The store is rebuilt" if plan.is_rebuild else "The catalog stays as it is"
    return (
        f"{how}: {made}, index files beside them, {moved}."
        if plan.is_rebuild
        else (f"{how}: {made}, {moved}.")
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
