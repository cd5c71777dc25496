"""Checks the offset tables in `marks`, by which messages are found in segments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from amqpstore.catalog import tables
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import START, OffsetTableRow, SegmentRow, StoreRows
from amqpstore.identity.expected_segments import is_of_log
from amqpstore.system.files import Files
from amqpstore_tools.check.catalog import FILE
from amqpstore_tools.check.findings import Finding, Findings
from amqpstore_tools.check.reading import StoreFile
from amqpstore_tools.check.segments import CheckedSegment, has_message_at, segment_name


class OffsetTableChecker:
    """Checks offset tables. Args: damaged, keys of rows in `segments`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        damaged: Collection[str],
        findings: Findings,
    ) -> None:
        self._files = files
        self._directory = directory
        self._damaged = damaged
        self._findings = findings

    def check(self, rows: Rows, offsets: Mapping[int, Iterable[Finding]]) -> None:
        """Check all tables: their offsets, and that each id is looked up in one segment only.

        Args: offsets, by segment, the result of `check_offsets`.
        """
        findings = self._findings
        position = StoreRows.read(rows.__getitem__).position or START
        accounts = tables.SEGMENTS.read(rows.__getitem__)
        offset_tables = tables.OFFSET_TABLES.read(rows.__getitem__)
        last_end = 0
        for number, row in sorted(offset_tables.items(), key=lambda item: item[1].first_id):
            key = tables.OFFSET_TABLES.key(number)
            account = accounts.get(number)
            is_known = account is not None or key in self._damaged
            if not is_known and not is_of_log(number, position.segment):
                text = f"table marks, row {key!r}: segment {number} has no row in segments"
                findings.add("row-orphaned", FILE, text)
                continue
            findings.extend(offsets.get(number, ()))
            self._check_range(segment_name(number), row, account, last_end)
            last_end = max(last_end, row.end_id)
        for number, account in accounts.items():
            if account.live_count and number not in offset_tables:
                findings.add("marks-wrong", segment_name(number), "it has no row in marks")

    def _check_range(
        self, name: str, row: OffsetTableRow, account: SegmentRow | None, last_end: int
    ) -> None:
        first, end = row.first_id, row.end_id
        if first < min(last_end, end):
            text = f"ids from {first} on are assigned to another segment too"
            self._findings.add("marks-wrong", name, text)
        if account and account.live_count:
            has_first, has_end = account.first_id, account.end_id
            if not (first <= has_first and has_end <= end):
                text = f"it contains ids {has_first} to {has_end - 1}, but is searched for those"
                self._findings.add("marks-wrong", name, f"{text} from {first} to {end - 1}")

    def check_offsets(self, segment: CheckedSegment, row: OffsetTableRow) -> None:
        """Check the offsets in the table of one segment."""
        try:
            file = StoreFile(self._files, self._directory, segment.name, self._findings)
        except FileNotFoundError:
            return
        try:
            for message_id, offset in zip(row.ids, row.offsets, strict=True):
                if not has_message_at(file, offset, message_id) and not segment.in_gap(offset):
                    text = f"message {message_id} should be at offset {offset}, but is not"
                    self._findings.add(
                        "marks-wrong", segment.name, text, offset, message_id=message_id, messages=1
                    )
        finally:
            file.close()
