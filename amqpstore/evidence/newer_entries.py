"""Index files with messages that neither the catalog nor the log has seen.

A checkpoint writes to index files only what is durable in the log. So a crash before its rows are
committed leaves files without a row, or bytes behind the end that a row counts, but the log has all
messages in them. If it lacks some, the catalog or the log is an older one, or a part of the log is
missing.
"""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.catalog.keys import IndexKey
from amqpstore.evidence.present_numbers import PresentNumbers
from amqpstore.format.index import MAX_FILE_BYTES, decode_block
from amqpstore.format.records import Kind, Record, scan
from amqpstore.system.files import Files


class NewerEntries(NamedTuple):
    """The entries of an index file that catalog and log have not seen, in blocks from `offset` to
    before `end_offset`: sequences from `sequence` to before `end_sequence`, and ids from `first_id`
    to `last_id`.
    """

    offset: int
    end_offset: int
    sequence: int
    end_sequence: int
    first_id: int
    last_id: int
    messages: int

    @property
    def text(self) -> str:
        """The fault, as text for people."""
        return (
            f"it has {self.messages} messages, from {self.first_id} to {self.last_id}, that neither"
            " the last checkpoint nor the log has seen: one of these is older, or lacks a part"
        )


def find_newer_entries(
    files: Files, path: str, key: IndexKey, seed: int, start: int, known: PresentNumbers
) -> NewerEntries | None:
    """Return what an index file has behind offset `start` that nothing else has seen. None if there
    is nothing, or if it cannot be read. Args: known, the messages that the last checkpoint or the
    log has seen: see `passed_over.known_messages`.
    """
    try:
        file = files.open(path)
        try:
            content = file.read(start, MAX_FILE_BYTES)
        finally:
            file.close()
    # A file that cannot be read proves nothing, in either direction.
    except OSError:
        return None
    newer_entries = None
    for record in scan(content, key.number, seed):
        if not isinstance(record, Record) or record.kind != Kind.INDEX:
            continue
        try:
            queue_id, block = decode_block(content[record.payload_offset : record.end])
        except ValueError:
            continue
        newer = [index for index, message_id in enumerate(block.ids) if message_id not in known]
        if queue_id != key.queue_id or not newer:
            continue
        first, last = newer[0], newer[-1]
        if newer_entries is None:
            newer_entries = NewerEntries(
                start + record.offset, 0, block.sequences[first], 0, block.ids[first], 0, 0
            )
        newer_entries = newer_entries._replace(
            end_offset=start + record.end,
            end_sequence=block.sequences[last] + 1,
            last_id=block.ids[last],
            messages=newer_entries.messages + len(newer),
        )
    return newer_entries
