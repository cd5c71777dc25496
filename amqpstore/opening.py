"""Opening a directory: of a store that is there, or making one; and what it holds is recovered."""

from __future__ import annotations

import os
import uuid
from typing import NamedTuple

from amqpstore import marker
from amqpstore.backing import Backing
from amqpstore.catalog import Catalog, Change, OpenCatalog
from amqpstore.errors import DamageError
from amqpstore.filenames import CATALOG, INDEX, SEGMENTS
from amqpstore.files import Files
from amqpstore.queue import Queue
from amqpstore.recovery import Recovered, recover
from amqpstore.removal import quarantine

_STORE_ID = "store_id"


class Opened(NamedTuple):
    """A directory with its catalog, its queues by id, and what recovery says of them."""

    backing: Backing
    queues: dict[int, Queue]
    recovered: Recovered


def open_directory(directory: str, files: Files, open_catalog: OpenCatalog) -> Opened:
    """Open the store in a directory that is locked, or make one where there is nothing.

    Raises: FormatVersionError, DamageError (the marker or the catalog), UnreadableLogError,
    OSError.
    """
    store_id = marker.read(files, directory)
    if store_id is None:
        store_id = _make(files, directory, open_catalog)
    else:
        # Who put the marker there may have been killed before it was durable.
        files.sync_directory(directory)
        # A copy may come without the directories that were empty.
        for name in (SEGMENTS, INDEX):
            if not files.exists(os.path.join(directory, name)):
                files.make_directory(os.path.join(directory, name))
    catalog = open_catalog(os.path.join(directory, CATALOG), False)
    backing = Backing.of(files, directory, store_id.bytes, catalog)
    try:
        _check_catalog(directory, catalog, store_id)
        rows = catalog.rows("queues")
        queues = {int(key): Queue(int(key), rows[key], durable=True) for key in rows}
        recovered = recover(backing, queues)
        if recovered.changes:
            catalog.commit(recovered.changes)
        for path in recovered.leftovers:
            files.remove(path)
        for number in recovered.quarantined:
            quarantine(files, directory, number)
    except BaseException:
        catalog.close()
        raise
    return Opened(backing, queues, recovered)


def _make(files: Files, directory: str, open_catalog: OpenCatalog) -> uuid.UUID:
    """Make an empty store in a directory without a marker, and put the marker there last.

    So a store with a marker has a catalog: where it is missing now, it was lost.
    """
    store_id = uuid.uuid4()
    files.make_directory(os.path.join(directory, SEGMENTS))
    files.make_directory(os.path.join(directory, INDEX))
    catalog_path = os.path.join(directory, CATALOG)
    files.make_directory(catalog_path)
    catalog = open_catalog(catalog_path, True)
    try:
        catalog.commit([Change("store", _STORE_ID, store_id.bytes)])
    finally:
        catalog.close()
    # LMDB syncs its file, but not the entry that it made for it.
    files.sync_directory(catalog_path)
    marker.write(files, directory, store_id)
    return store_id


def _check_catalog(directory: str, catalog: Catalog, store_id: uuid.UUID) -> None:
    """Make sure that the catalog is of this store. Raises: DamageError.

    With another in the place of the lost one every message in the segments would count as one
    of a deleted queue.
    """
    written = catalog.rows("store").get(_STORE_ID)
    path = os.path.join(directory, CATALOG)
    if written is None:
        raise DamageError(path, 0, "the catalog is empty")
    if written != store_id.bytes:
        raise DamageError(path, 0, f"the catalog is of another store ({written.hex()})")
