"""Counters that all processes of a run see: one page of shared memory, written without locks.

Every cell has one writer, and an aligned u64 is written atomically, so a reader sees a recent count
and never a partly written one.
"""

import mmap
import time
from dataclasses import dataclass

FOREVER_NS = 2**63 - 1


@dataclass(frozen=True)
class Totals:
    """The counters of some workers, summed."""

    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    acked: int = 0
    connected: int = 0
    last_ns: int = 0  # monotonic clock, the latest change of any counter


_COLUMNS = 6


class Row:
    """One worker's counters; the worker writes them after every send or receive."""

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells

    def publishing(self, published: int, confirmed: int, now_ns: int) -> None:
        """Count messages handed to the kernel, and publishes confirmed, since the start."""
        cells = self._cells
        cells[0], cells[1], cells[5] = published, confirmed, now_ns

    def consuming(self, delivered: int, acked: int, now_ns: int) -> None:
        """Count deliveries received, and deliveries acked, since the start."""
        cells = self._cells
        cells[2], cells[3], cells[5] = delivered, acked, now_ns

    def connecting(self, connected: int, now_ns: int) -> None:
        """Count connections opened and closed since the start."""
        cells = self._cells
        cells[4], cells[5] = connected, now_ns


class Board:
    """Shared memory for `rows` workers and a stop flag; create it before the workers fork."""

    def __init__(self, rows: int) -> None:
        self._memory = mmap.mmap(-1, 8 * (1 + rows * _COLUMNS))
        self._cells = memoryview(self._memory).cast("Q")
        self._rows = rows

    def row(self, index: int) -> Row:
        """Return the counters of worker `index`."""
        start = 1 + index * _COLUMNS
        return Row(self._cells[start : start + _COLUMNS])

    def stop(self) -> None:
        """Tell every consumer that nothing more will be published."""
        self._cells[0] = 1

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._cells[0] != 0

    def totals(self) -> Totals:
        """Return the sums over all workers as of now."""
        rows = [
            self._cells[1 + row * _COLUMNS : 1 + (row + 1) * _COLUMNS] for row in range(self._rows)
        ]
        return Totals(
            published=sum(row[0] for row in rows),
            confirmed=sum(row[1] for row in rows),
            delivered=sum(row[2] for row in rows),
            acked=sum(row[3] for row in rows),
            connected=sum(row[4] for row in rows),
            last_ns=max(row[5] for row in rows),
        )


def now_ns() -> int:
    """Return the monotonic clock, which all processes of a machine share."""
    return time.monotonic_ns()
