"""Damage and power cuts together: a damaged segment is moved to quarantine, and never lost on the
way there."""

import random

from amqpstore.system.filenames import QUARANTINE, SEGMENTS
from amqpstore.system.removal import quarantine
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened, Trace
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Rename, SyncDirectory
from tests.crash.histories import DIRECTORY, open_store, outside_of

FIRST = f"{DIRECTORY}/{SEGMENTS}/0000000001.segment"


def damaged_store() -> tuple[MemoryFiles, bytes]:
    """A killed store in whose first segment a TRANSACTION is damaged; and that segment."""
    outside = outside_of(open_store)
    outside.open()
    outside.create_queue("orders")
    for number in range(4):
        outside.publish(["orders"], [b"%d" % number, bytes(400)])
        outside.sync()
    outside.kill()
    files = outside.files
    content = bytearray(files.content(FIRST))
    content[-1] ^= 1
    files.replace(FIRST, bytes(content))
    return files.power_cut({}, {}), bytes(content)


def is_kept(files: MemoryFiles, content: bytes) -> bool:
    """Tell whether a file, under a name that the store looks at, is the damaged segment."""
    found = [FIRST] if files.exists(FIRST) else []
    moved = f"{DIRECTORY}/{QUARANTINE}"
    if files.exists(moved):
        found += [f"{moved}/{name}" for name in files.list_directory(moved)]
    return any(files.content(path) == content for path in found)


def test_a_damaged_segment_is_there_after_a_cut_at_any_step_of_its_move() -> None:
    files, content = damaged_store()
    trace = Trace(files.fork())
    outside = Outside(trace, files, open_store)
    outside.open()
    assert outside.store.recovery_report.damage
    while outside.ready_count("orders"):
        outside.take("orders", 10, acked=True)
    outside.sync()
    outside.publish(["orders"], [bytes(1500)])
    outside.sync()
    outside.checkpoint()
    outside.housekeep(3)
    outside.kill()
    operations = [
        event for event in trace.events if not isinstance(event, Asked | Promised | StoreOpened)
    ]
    assert any(isinstance(one, Rename) and one.old == FIRST for one in operations)
    assert any(isinstance(one, SyncDirectory) and QUARANTINE in one.path for one in operations)
    rng = random.Random("quarantine")
    disk = trace.base.fork()
    is_on_its_way = False
    for operation in operations:
        disk.redo(operation)
        if isinstance(operation, Rename) and operation.old == FIRST:
            is_on_its_way = True
        elif isinstance(operation, SyncDirectory) and operation.path.endswith(QUARANTINE):
            is_on_its_way = False
        if is_on_its_way:
            # File systems with a journal rename all at once. This disk takes the directories
            # apart: so it can only say what is so once the new one is durable.
            continue
        for image in crash_images(disk, rng, 20):
            assert is_kept(image.files, content), f"at {operation}: {image.description}"
            open_store(image.files).abandon()
            assert is_kept(image.files, content), f"at {operation}, recovered: {image.description}"


def test_a_segment_that_was_moved_is_out_of_the_way_for_good() -> None:
    """The segment's old name must not be back after a power cut: the next start would move it once
    more.
    """
    files = MemoryFiles()
    files.make_directory(f"{DIRECTORY}/{SEGMENTS}")
    segment = files.create(FIRST)
    segment.append([b"damaged"])
    segment.datasync()
    files.sync_directory(f"{DIRECTORY}/{SEGMENTS}")
    quarantine(files, DIRECTORY, 1)
    for image in crash_images(files, random.Random("moved"), 20):
        assert image.files.list_directory(f"{DIRECTORY}/{SEGMENTS}") == []
        assert image.files.list_directory(f"{DIRECTORY}/{QUARANTINE}") == ["0000000001.segment"]
