"""The steps that the manual has an operator take with a damaged store: check, export, repair,
restore a copy.

Each step is done as it would be typed, and compared with the optimum: every message whose bytes are
intact comes out of an export and of a repair, and everything out of a restored copy; a check does
not call sound what lacks messages.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence

from amqpstore import StoreError
from amqpstore.system.filenames import MARKER
from amqpstore_tools.check.engine import check
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.copying.restoring import restore
from amqpstore_tools.drill.copying import link_store
from amqpstore_tools.drill.examiner import Examined, Examiner, digest_of
from amqpstore_tools.drill.invariants import Fault
from amqpstore_tools.offline.exits import ToolError
from amqpstore_tools.offline.soundness import is_damaged
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.repair.plan import make_plan
from amqpstore_tools.transfer.exporting import ExportedQueue, export, queues_of
from amqpstore_tools.transfer.input import lines_of, opened
from amqpstore_tools.transfer.lines import LineWriter, MessageLine

FOLLOWED = ("I14",)
"""The invariant that the steps are checked for."""

DOING = "what the manual says"
"""Shown while they are done."""

Served = Counter[str]
"""In how many queues each message is, by its digest."""

_REFUSED = (StoreError, ToolError, OSError)


class Manual:
    """The steps, for copies of the store in `whole`, which is intact; `work` is a directory for
    what they write.
    """

    def __init__(self, whole: str, work: str, examiner: Examiner) -> None:
        self._examiner = examiner
        self._before = served_by(examiner.examine(_linked(whole, os.path.join(work, "manual"))))
        self._backup = os.path.join(work, "backup")
        self._directory = os.path.join(work, "manual")
        self._file = os.path.join(work, "manual.jsonl")
        copy_store(whole, self._backup, CopyOptions())

    def follow(self, left: str, intact: Served | None = None) -> Iterator[Fault]:
        """Do all steps with a copy of a store. Yields what does not come out of them.

        Args: intact, the messages of a damaged store whose bytes are intact; None if nothing was
        damaged: then all that the whole store serves has to come out, and nothing else.
        """
        expected = self._before if intact is None else intact
        directory = _linked(left, self._directory)
        is_sound = self._is_sound(directory)
        exported = self._exported(directory)
        if isinstance(exported, str):
            yield "I14", f"export: {exported}"
        else:
            if missing := expected - exported:
                yield "I14", f"export leaves out {missing.total()} messages that are intact"
            if intact is None and (extra := exported - expected):
                yield "I14", f"export has {extra.total()} messages that the store does not serve"
            if is_sound and (lost := self._before - exported):
                yield "I14", f"check calls the store sound, and {lost.total()} messages are missing"
        repaired = self._repaired(directory)
        if isinstance(repaired, str):
            yield "I14", f"repair: {repaired}"
        else:
            if missing := expected - repaired:
                yield "I14", f"repair drops {missing.total()} messages that are intact"
            if intact is None and (extra := repaired - expected):
                yield "I14", f"repair adds {extra.total()} messages that the store does not serve"
        restored = self._restored(left)
        if isinstance(restored, str):
            yield "I14", f"restore: {restored}"
        elif wrong := (self._before - restored) + (restored - self._before):
            yield "I14", f"a restored copy differs from the store in {wrong.total()} messages"

    @staticmethod
    def _is_sound(directory: str) -> bool:
        try:
            return not check(directory).is_damaged
        except _REFUSED:
            return False

    def _exported(self, directory: str) -> Served | str:
        """Return the digests of what an export of all queues has, or why there is none."""
        try:
            lines = exported(directory, self._file)
        except _REFUSED as error:
            return str(error)
        return Counter(
            digest_of(line.exchange, line.routing_key, line.properties, line.body) for line in lines
        )

    def _repaired(self, directory: str) -> Served | str:
        """Return the digests of what a repaired store serves, or why it serves nothing."""
        try:
            apply_plan(directory, make_plan(directory, lambda *_: None).plan)
            if not self._is_sound(directory):
                return "the repaired store is not sound"
        except _REFUSED as error:
            return str(error)
        found = self._examiner.examine(directory)
        return found.error or served_by(found)

    def _restored(self, damaged: str) -> Served | str:
        """Return the digests of what is served after the backup took the damaged store's place."""
        directory = _linked(damaged, self._directory)
        if not os.path.exists(os.path.join(directory, MARKER)):
            # It is not a store any more, which a restore does not replace: move it away first.
            shutil.rmtree(directory)
        try:
            restored = restore(self._backup, directory, links=True, accept_damage=False)
            if restored.kept:
                shutil.rmtree(restored.kept)
        except _REFUSED as error:
            return str(error)
        found = self._examiner.examine(directory)
        return found.error or served_by(found)


def after_crash(left: str, work: str) -> Iterator[Fault]:
    """Do the steps with what a crash has left of a store, which recovery has not touched: all that
    it serves is intact.
    """
    whole = os.path.join(work, "manual-whole")
    with Examiner() as examiner:
        try:
            manual = Manual(_linked(left, whole), work, examiner)
        except _REFUSED as error:
            yield "I14", f"copy: {error}"
        else:
            yield from manual.follow(left)
    for path in (whole, os.path.join(work, "backup"), os.path.join(work, "manual")):
        shutil.rmtree(path, ignore_errors=True)


def exported(directory: str, file_path: str) -> list[MessageLine]:
    """Export all queues of a store to a file. Returns the messages in it.

    Raises: StoreError, ToolError, OSError.
    """
    with RemainingImage.open(directory) as image, open(file_path, "wb") as file:
        queues: Sequence[ExportedQueue]
        if image.remains or is_damaged(image):
            queues = (image.remains or image.find_remains()).queues
        else:
            queues = queues_of(image)
        export("", LineWriter(file, "jsonl"), queues)
    with opened(file_path) as (read, size):
        lines = lines_of(file_path, read, size, lambda *_: None, "reading")
        return [line for line in lines if isinstance(line, MessageLine)]


def served_by(found: Examined) -> Served:
    """Return the digests of all messages that a store serves."""
    return Counter(digest for queue in found.queues.values() for _, _, digest in queue.messages)


def _linked(directory: str, target: str) -> str:
    link_store(directory, target)
    return target
