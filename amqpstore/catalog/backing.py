"""The files and the catalog of an open store, for all modules that read and write them."""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.catalog.catalog import Catalog
from amqpstore.format.limits import LIMITS, StoreLimits
from amqpstore.format.records import checksum_seed
from amqpstore.system.descriptors import Descriptors
from amqpstore.system.files import Files


class Backing(NamedTuple):
    """The store in `directory`, with its id of 16 bytes, its files and its catalog.

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
        """Create one without open files."""
        return cls(files, directory, store_id, catalog, Descriptors(files), limits)

    @property
    def seed(self) -> int:
        """The seed of the checksums of the store's records."""
        return checksum_seed(self.store_id)
