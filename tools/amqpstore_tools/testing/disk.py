"""A disk in memory under a running broker: threads share it, and its power can fail."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles, MemoryLock

_IMAGES = 100
"""How many possible images of a power cut a seed chooses from."""


class Disk(MemoryFiles):
    """A disk that changes no more once its power has failed: every attempt fails with EIO.

    Args: image, which it takes over, and which must not be used otherwise. `on_power_cut` is called
    when the power fails, in the thread in which it does; `on_capacity`, when its size was changed,
    in the thread that did it; `on_space`, when it gets nearly full, or is not any longer, in the
    thread that writes.
    """

    def __init__(self, image: MemoryFiles | None = None) -> None:
        self.on_capacity: Callable[[], None] = lambda: None
        self.on_space: Callable[[], None] = lambda: None
        super().__init__()
        if image is not None:
            vars(self).update(vars(image))
        self.is_on = True
        self.on_power_cut: Callable[[], None] = lambda: None
        self._was_nearly_full = False
        self._fails_at_sync = False
        self._mutex = threading.RLock()

    @property
    def capacity_bytes(self) -> int | None:
        """The size of the disk; None if it is never full. May be changed at any time."""
        return self._capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        self._capacity_bytes = capacity_bytes
        self.on_capacity()

    @property
    def blocked_below_bytes(self) -> int:
        """The free bytes below which publishers have to wait: by default a tenth of a disk."""
        return (self._capacity_bytes or 0) // 10

    def _look(self) -> None:
        """Call `on_space` if the disk is nearly full, or is not any longer."""
        if self._capacity_bytes is None:
            return
        is_nearly_full = self.free_bytes("/") < self.blocked_below_bytes
        if is_nearly_full != self._was_nearly_full:
            self._was_nearly_full = is_nearly_full
            self.on_space()

    def switch_off(self) -> None:
        """Cut the power. Another thread's operation is completed before that, or not done at
        all.
        """
        with self._mutex:
            if self.is_on:
                self.is_on = False
                self.on_power_cut()

    def fail_at_next_sync(self) -> None:
        """Cut the power right before the next time that something becomes durable."""
        with self._mutex:
            self._fails_at_sync = True

    def after_power_cut(self, seed: int | None) -> tuple[Disk, str]:
        """Return the disk that is left, and a description of unsynced data that survived.

        Args: seed, which selects that; with None only synced data survives.
        """
        disk, survived = self._after_power_cut(seed)
        disk.capacity_bytes = self.capacity_bytes
        return disk, survived

    def _after_power_cut(self, seed: int | None) -> tuple[Disk, str]:
        if seed is None:
            return Disk(self.power_cut({}, {})), "nothing unsynced"
        rng = random.Random(seed)  # noqa: S311 (a seed, not a secret)
        images = list(crash_images(self, rng, _IMAGES))
        # Everything survived, nothing did, or any part: most of these are torn, and count as
        # nothing.
        image = rng.choice([*images[:2], rng.choice(images)])
        return Disk(image.files), image.description

    @contextmanager
    def _powered(self, *, syncing: bool = False) -> Iterator[None]:
        """Perform one change of the disk. Raises: OSError, when it has no power."""
        with self._mutex:
            if syncing and self._fails_at_sync:
                self.switch_off()
            if not self.is_on:
                raise OSError(errno.EIO, "the power has failed")
            yield

    # Changes, one at a time.

    def create(self, path: str) -> MemoryFile:
        with self._powered():
            return super().create(path)

    def rename(self, old: str, new: str) -> None:
        with self._powered():
            super().rename(old, new)

    def link(self, old: str, new: str) -> None:
        with self._powered():
            super().link(old, new)

    def remove(self, path: str) -> None:
        with self._powered():
            super().remove(path)
            self._look()

    def free_bytes(self, path: str) -> int:
        with self._mutex:
            return super().free_bytes(path)

    def sync_directory(self, path: str) -> None:
        with self._powered(syncing=True):
            super().sync_directory(path)

    def lock(self, path: str, holder: str) -> MemoryLock:
        with self._powered():
            return super().lock(path, holder)

    def make_unsynced_directory(self, path: str) -> None:
        with self._powered():
            super().make_unsynced_directory(path)

    def replace(self, path: str, content: bytes) -> None:
        with self._powered(syncing=True):
            super().replace(path, content)

    def write(self, path: str, number: int, offset: int, content: bytes) -> None:
        with self._powered():
            super().write(path, number, offset, content)
            self._look()

    def truncate(self, path: str, number: int, offset: int) -> None:
        with self._powered():
            super().truncate(path, number, offset)
            self._look()

    def sync_file(self, path: str, number: int) -> None:
        with self._powered(syncing=True):
            super().sync_file(path, number)
