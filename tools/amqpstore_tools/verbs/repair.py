"""`amqpstore repair`: repairs a store by a plan, which can be undone."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from amqpstore_tools.check.findings import WHERE_EXPLAINED
from amqpstore_tools.offline import terminal
from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import require_directory, require_outside, with_reserve
from amqpstore_tools.offline.locks import shared_lock
from amqpstore_tools.offline.output import output_file
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.journal import Repair
from amqpstore_tools.repair.plan import RepairPlan, make_plan, read_plan
from amqpstore_tools.repair.undo import undo
from amqpstore_tools.spark.engine import add_engine, executor_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data directory and what is to be done."""
    parser.description = (
        "Repair a data directory in which amqpstore check finds damage. First make a plan (--plan) "
        "and read it: nothing is changed yet. Then apply it (--apply): the store is rebuilt from "
        "everything that is sound, and files that are replaced are kept in DIR/quarantine/. --undo "
        "restores exactly the state before the repair, as long as the store has not been used "
        "since."
    )
    parser.add_argument("directory", metavar="DIR", help="a data directory")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--plan", metavar="FILE", help="make a plan, write it to FILE and show it")
    what.add_argument("--apply", metavar="FILE", help="carry out the plan in FILE")
    what.add_argument("--undo", action="store_true", help="undo the last repair")
    add_json(parser)
    parser.epilog = f"{parser.epilog} A refused repair changes nothing. {WHERE_EXPLAINED}"
    add_engine(parser, "the check for the plan is distributed over a cluster")


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked. Returns the exit code."""
    no_space = (
        "Nothing was changed that the same command cannot finish, or --undo undo. Free some space "
        "on that disk; or copy the store to another one, and repair it there."
    )
    return run_tool("repair", lambda: _run(arguments), as_json=arguments.json, no_space=no_space)


def _run(arguments: argparse.Namespace) -> None:
    directory = os.path.normpath(arguments.directory)
    if arguments.plan:
        _plan(directory, arguments)
    elif arguments.apply:
        _apply(directory, arguments.apply, as_json=arguments.json)
    else:
        _undo(directory, as_json=arguments.json)


def _plan(directory: str, arguments: argparse.Namespace) -> None:
    path = arguments.plan
    require_directory(directory)
    require_outside(directory, path)
    with (
        progress_bar() as tell,
        executor_of(arguments, "check") as executor,
        shared_lock(directory),
    ):
        plan = make_plan(directory, tell, executor=executor).plan
    with output_file(path) as file:
        file.write(json.dumps(plan.as_json(), indent=1).encode() + b"\n")
    if arguments.json:
        write_json({**_facts(plan), "steps": plan.steps, "queues": plan.queues})
        return
    # Imported here, so that the other verbs start without rich.
    from amqpstore_tools.repair.report import print_plan

    print_plan(plan, directory, path, terminal.console())


def _apply(directory: str, path: str, *, as_json: bool) -> None:
    plan = read_plan(path)
    with progress_bar() as tell:
        repair = with_reserve(directory, lambda: apply_plan(directory, plan, tell))
    if as_json:
        write_json({**_facts(plan), "quarantine": repair.name if repair else None})
        return
    from amqpstore_tools.repair.report import print_applied

    print_applied(plan, repair, directory, terminal.console())


def _undo(directory: str, *, as_json: bool) -> None:
    with progress_bar() as tell:
        repair: Repair = with_reserve(directory, lambda: undo(directory, tell))
    if as_json:
        write_json({"undone": repair.name})
        return
    terminal.console().print(f"{repair.name} is undone: every file is as it was before.")


def _facts(plan: RepairPlan) -> dict[str, Any]:
    return {
        "store_id": plan.store_id,
        "rebuild": plan.is_rebuild,
        "findings": len(plan.steps),
        "kept": sum(queue["kept"] for queue in plan.queues),
        "lost": sum(queue["lost"] for queue in plan.queues),
        "again": sum(queue["again"] for queue in plan.queues),
        "is_log_lost": plan.is_log_lost,
        "moves": plan.moves,
        "makes": plan.makes,
        "notes": plan.notes,
    }
