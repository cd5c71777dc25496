"""What an open store stands on, handed to all who read and write its files."""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.catalog import Catalog
from amqpstore.files import Files
from amqpstore.records import checksum_seed


class Backing(NamedTuple):
    """The store in `directory`, by its id of 16 bytes, and the way to its files and catalog."""

    files: Files
    directory: str
    store_id: bytes
    catalog: Catalog

    @property
    def seed(self) -> int:
        """What the checksums of the store's records begin with."""
        return checksum_seed(self.store_id)
