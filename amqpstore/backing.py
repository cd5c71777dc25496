"""What an open store stands on, handed to all who read and write its files."""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.catalog import Catalog
from amqpstore.descriptors import Descriptors
from amqpstore.files import Files
from amqpstore.limits import LIMITS, StoreLimits
from amqpstore.records import checksum_seed


class Backing(NamedTuple):
    """The store in `directory`, by its id of 16 bytes, and the way to its files and catalog.

    `descriptors` are for the thread that owns the store.
    """

    files: Files
    directory: str
    store_id: bytes
    catalog: Catalog
    descriptors: Descriptors
    limits: StoreLimits = LIMITS

    @classmethod
    def of(
        cls,
        files: Files,
        directory: str,
        store_id: bytes,
        catalog: Catalog,
        limits: StoreLimits = LIMITS,
    ) -> Backing:
        """With no file open."""
        return cls(files, directory, store_id, catalog, Descriptors(files), limits)

    @property
    def seed(self) -> int:
        """What the checksums of the store's records begin with."""
        return checksum_seed(self.store_id)
