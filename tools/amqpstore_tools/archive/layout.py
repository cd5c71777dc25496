"""The layout of an archive.

    OUT/vhost=%2F/queue=orders/hour=2026-11-21-17/RUN-SEGMENT-PART-QUEUE_ID.parquet
    OUT/_archive/000001.json        the manifest of run 1: which files it added
    OUT/_archive/000002.prepared    run 2 is being committed
    OUT/_archive/lock
    OUT/_staging/000002-1f0c.../    files of run 2 that do not count yet

Spark reads the directory names as partition columns, and ignores names that begin with an
underscore. Names are escaped as Spark and Hive do it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from datetime import UTC, datetime
from typing import NamedTuple

MANIFESTS = "_archive"
STAGING = "_staging"
LOCK = "lock"
PREPARED = ".prepared"
COMMITTED = ".json"

_ESCAPED = set("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(32)}
_NULL = "__HIVE_DEFAULT_PARTITION__"
_MAX_BYTES = 240
"""The longest name of a directory: file systems allow 255 bytes."""


class QueueName(NamedTuple):
    """A stored queue; each priority level of a broker's queue is one. None means that it has no
    name.
    """

    vhost: str | None
    queue: str | None


def directory_of(name: QueueName, hour: str) -> str:
    """Return the directory of the events of a queue and an hour, relative to the archive's
    directory.
    """
    return os.path.join(queue_directory(name), f"hour={hour}")


def queue_directory(name: QueueName) -> str:
    """Return the directory of a queue, for all hours."""
    return os.path.join(_component("vhost", name.vhost), _component("queue", name.queue))


def hour_of(time_ms: int) -> str:
    """Return the hour of a time, in UTC."""
    try:
        return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d-%H}"
    except (ValueError, OverflowError, OSError):
        return "9999-12-31-23"


def file_name(run: int, segment: int, part: int, queue_id: int) -> str:
    """Return a file name; the names of one queue sort in the order of the log."""
    return f"{run:06}-{segment:010}-{part:04}-{queue_id}.parquet"


def staging_name(run: int) -> str:
    """Return a name for staging, different for each attempt."""
    return f"{run:06}-{secrets.token_hex(8)}"


def manifest_name(run: int, suffix: str = COMMITTED) -> str:
    return f"{run:06}{suffix}"


def is_staging_name(name: str) -> bool:
    """Tell whether a name has the form of `staging_name`."""
    return re.fullmatch(r"[0-9]{6,}-[0-9a-f]{16}", name) is not None


def is_event_file(path: str) -> bool:
    """Tell whether a path, relative to the archive's directory, has the form of a file of
    events.
    """
    parts = path.split("/")
    columns = zip(("vhost=", "queue=", "hour="), parts[:-1], strict=False)
    return (
        len(parts) == 4
        and all(part.startswith(column) for column, part in columns)
        and re.fullmatch(r"[0-9-]+\.parquet", parts[-1]) is not None
        and "\0" not in path
    )


def _component(column: str, value: str | None) -> str:
    return f"{column}={_NULL if not value else _short(_escaped(value))}"


def _escaped(value: str) -> str:
    """Escape a name as Spark's ExternalCatalogUtils.escapePathName does; and names that cannot be
    file names either.
    """
    return "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in value)


def _short(escaped: str) -> str:
    octets = escaped.encode("utf-8", "surrogateescape")
    if len(octets) <= _MAX_BYTES:
        return escaped
    digest = hashlib.sha256(octets).hexdigest()[:16]
    return f"{octets[: _MAX_BYTES - 17].decode('utf-8', 'ignore')}~{digest}"
