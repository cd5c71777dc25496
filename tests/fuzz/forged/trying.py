"""The broker and every tool at a store, or at a file of a tool's, that says something else.

Whatever is raised here that is not one of the errors that are explained is a fault.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from amqpstore import Message, MessageDamagedError, Queue, Run, Store, StoreError
from amqpstore_server.logins.users import Users
from amqpstore_tools.__main__ import main
from tests.fuzz.forged.forger import Forger
from tests.fuzz.forged.stores import (
    ENVELOPE,
    broker_of,
    forge_catalog,
    forge_copy_of_definitions,
    forge_json,
    forge_lines,
    forge_record,
    opened,
)

CODES = range(6)


def amqpstore(*arguments: str) -> int:
    """Run the command. Raises: any error that the command does not explain."""
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    if code not in CODES:
        raise RuntimeError(f"{arguments} ended with {code}")
    return code


def use(directory: str) -> None:
    """Open a store, take what is ready, publish, and make a checkpoint and compact."""
    store = opened(directory)
    try:
        for prepared in list(store.prepared.values()):
            with contextlib.suppress(StoreError):
                prepared.commit(prepared.publishes())
        for queue in list(store.queues.values()):
            _take_all(store, queue)
            if queue.durable:
                store.publish([queue], [Message(ENVELOPE, b"new")])
        store.sync()
        store.upkeep.checkpoint()
        for _ in store.upkeep.compact():
            pass
        store.close()
    finally:
        store.abandon()


def _take_all(store: Store, queue: Queue) -> None:
    while queue.ready_count:
        run = store.take(queue, 10)
        if isinstance(run, Run):
            with contextlib.suppress(MessageDamagedError):
                store.stored.read(run)
            store.ack(queue, run)
        elif run is None:
            return


def serve(directory: str) -> None:
    """Start the broker, without its doors, and have it do what is due."""
    store = opened(directory)
    try:
        broker = broker_of(store)
        Users(store)
        broker.services.run_timers()
        broker.pumping.pump()
        for vhost in broker.vhosts.values():
            for queue in vhost.queues.values():
                queue.enforce()
        store.sync()
        store.close()
    finally:
        store.abandon()


def _explained(work: Callable[[str], None], directory: str) -> bool:
    try:
        work(directory)
    except (StoreError, OSError):
        return False
    return True


def try_store(directory: str, scratch: str) -> None:
    """Read a store with every tool, use it, and mend it."""
    plan = f"{scratch}/plan.json"
    for verb, *more in (
        ("check",),
        ("inspect",),
        ("inspect", "--json"),
        ("export", f"{scratch}/export"),
        ("copy", f"{scratch}/copy"),
        ("upgrade",),
    ):
        amqpstore(verb, directory, *more)
    for name, work in (("used", use), ("served", serve)):
        _explained(work, shutil.copytree(directory, f"{scratch}/{name}"))
    amqpstore("compact", shutil.copytree(directory, f"{scratch}/compacted"))
    if os.path.exists(f"{scratch}/export"):
        amqpstore("import", shutil.copytree(directory, f"{scratch}/imported"), f"{scratch}/export")
    if amqpstore("repair", directory, "--plan", plan) or amqpstore(
        "repair", directory, "--apply", plan
    ):
        return
    if code := amqpstore("check", directory):
        raise RuntimeError(f"check said {code} after the repair")
    use(directory)  # raises, where it cannot be used


def try_catalog(forger: Forger, directory: str, scratch: str) -> None:
    forge_catalog(forger, directory)
    try_store(directory, scratch)


def try_segment(forger: Forger, directory: str, scratch: str) -> None:
    forge_record(forger, directory, "segments")
    try_store(directory, scratch)


def try_index(forger: Forger, directory: str, scratch: str) -> None:
    forge_record(forger, directory, "index")
    try_store(directory, scratch)


def try_copy_of_definitions(forger: Forger, directory: str, scratch: str) -> None:
    forge_copy_of_definitions(forger, directory)
    try_store(directory, scratch)


def try_manifest(forger: Forger, directory: str, scratch: str) -> None:
    """A copy's manifest is forged: it is restored, and copied against."""
    amqpstore("copy", directory, f"{scratch}/copy")
    forge_json(forger, f"{scratch}/copy/COPY.json")
    amqpstore("copy", directory, f"{scratch}/copy2", "--against", f"{scratch}/copy")
    amqpstore("restore", f"{scratch}/copy", f"{scratch}/restored")
    amqpstore("check", f"{scratch}/copy")


def _damage(directory: str) -> None:
    names = sorted(os.listdir(f"{directory}/segments"))
    with open(f"{directory}/segments/{names[-1]}", "r+b") as file:
        file.seek(40)
        file.write(b"damage")


def try_plan(forger: Forger, directory: str, scratch: str) -> None:
    plan = f"{scratch}/plan.json"
    _damage(directory)
    amqpstore("repair", directory, "--plan", plan)
    forge_json(forger, plan)
    amqpstore("repair", directory, "--apply", plan)
    amqpstore("repair", directory, "--undo")


def try_journal(forger: Forger, directory: str, scratch: str) -> None:
    plan = f"{scratch}/plan.json"
    _damage(directory)
    amqpstore("repair", directory, "--plan", plan)
    amqpstore("repair", directory, "--apply", plan)
    (repair,) = [name for name in os.listdir(f"{directory}/quarantine") if "repair" in name]
    forge_json(forger, f"{directory}/quarantine/{repair}/journal.json")
    amqpstore("check", directory)
    amqpstore("inspect", directory)
    amqpstore("copy", directory, f"{scratch}/copy")
    amqpstore("repair", directory, "--undo")
    amqpstore("repair", directory, "--plan", plan)


def try_export(forger: Forger, directory: str, scratch: str) -> None:
    path = f"{scratch}/export"
    amqpstore("export", directory, path)
    forge_lines(forger, path)
    if forger.random.random() < 0.5:
        shutil.rmtree(directory)
        opened(directory).close()
    if amqpstore("import", directory, path, "--create") == 0:
        use(shutil.copytree(directory, f"{scratch}/used"))
        serve(directory)


class Way(NamedTuple):
    """A kind of input to forge and try, `weight` times as often as a kind with a weight of 1."""

    weight: int
    name: str
    run: Callable[[Forger, str, str], None]


WAYS = [
    Way(6, "catalog", try_catalog),
    Way(5, "segment", try_segment),
    Way(4, "index", try_index),
    Way(3, "definitions", try_copy_of_definitions),
    Way(2, "manifest", try_manifest),
    Way(2, "plan", try_plan),
    Way(2, "journal", try_journal),
    Way(3, "export", try_export),
]
