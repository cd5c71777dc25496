"""A copy of a data directory on a disk in memory, everything synced; and the way back."""

from __future__ import annotations

import os

from amqpstore.system.filenames import CATALOG, CATALOG_FILE
from amqpstore.system.files import FileType
from amqpstore_tools.drill.run import LeftOutError
from amqpstore_tools.offline.instant import read_tables, write_tables
from amqpstore_tools.simulation.memory_catalog import put_rows, stored_rows
from amqpstore_tools.simulation.memory_files import MemoryFiles

_MAX_BYTES = 32 << 20
"""Each recovered disk is read completely, thousands of times."""


def load_store(directory: str, files: MemoryFiles, target: str) -> None:
    """Copy the data directory `directory` to `target` on `files`; the catalog becomes the model's.

    Raises: LeftOutError, when it is too large; DamageError (the catalog), OSError.
    """
    paths = [
        os.path.relpath(os.path.join(root, name), directory)
        for root, _, names in os.walk(directory)
        for name in names
    ]
    size = sum(
        os.path.getsize(os.path.join(directory, path))
        for path in paths
        if not path.startswith(CATALOG + os.sep)
    )
    if size > _MAX_BYTES:
        raise LeftOutError(
            f"the copy has {size >> 20} MiB, and a disk in memory takes {_MAX_BYTES >> 20} MiB"
        )
    files.make_directory(target)
    for path in paths:
        name = f"{target}/{path}"
        files.make_directory(os.path.dirname(name))
        if path.startswith(CATALOG + os.sep):
            continue
        with open(os.path.join(directory, path), "rb") as source:
            content = source.read()
        file = files.create(name)
        file.append([content])
        file.datasync()
        file.close()
        files.sync_directory(os.path.dirname(name))
    path = f"{target}/{CATALOG}"
    files.create(f"{path}/{CATALOG_FILE}").close()
    tables = read_tables(os.path.join(directory, CATALOG))
    put_rows(files, path, {table.decode(): dict(rows) for table, rows in tables.items()})
    files.sync_directory(path)


def save_store(files: MemoryFiles, source: str, directory: str) -> None:
    """Copy the directory `source` of a disk in memory to `directory`, which does not exist yet;
    the model's catalog becomes a real one.

    Raises: OSError.
    """
    os.mkdir(directory)
    for name in files.list_directory(source):
        path, target = f"{source}/{name}", os.path.join(directory, name)
        if name == CATALOG and files.exists(f"{path}/{CATALOG_FILE}"):
            os.mkdir(target)
            rows = stored_rows(files, path)
            write_tables(target, {table.encode(): [*rows[table].items()] for table in rows})
        elif files.type_of(path) is FileType.DIRECTORY:
            save_store(files, path, target)
        else:
            with open(target, "wb") as file:
                file.write(files.content(path))
