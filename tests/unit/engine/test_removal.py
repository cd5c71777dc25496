"""Tests of the copy of an index file that goes to quarantine."""

import random

from amqpstore.system.removal import copy_to_quarantine
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation

NAME = "00000000000000000001-0000000001.index"
CONTENT = bytes(range(256)) * 64


def test_a_power_cut_leaves_a_whole_copy_in_quarantine_or_none() -> None:
    """The power is cut at every operation; once the copy is said to be there, it is whole. A part
    of it would be taken for the copy by the next start.
    """
    files = MemoryFiles()
    for folder in ("index", "quarantine"):
        files.make_directory(f"/store/{folder}")
    file = files.create(f"/store/index/{NAME}")
    file.append([CONTENT])
    file.datasync()
    file.close()
    files.sync_directory("/store/index")
    rng = random.Random(1)
    copies: list[bytes | None] = []

    def look(_operation: Operation | None) -> None:
        copies[:] = [content_of(image.files) for image in crash_images(files, rng, 100)]
        assert all(copy in (None, CONTENT) for copy in copies)

    files.record = look
    copy_to_quarantine(files, "/store", f"/store/index/{NAME}")
    look(None)
    assert all(copy == CONTENT for copy in copies)


def content_of(files: MemoryFiles) -> bytes | None:
    path = f"/store/quarantine/{NAME}"
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()
