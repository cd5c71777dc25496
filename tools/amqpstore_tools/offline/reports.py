"""Reports that a tool leaves in a data directory, where the web pages of its broker show them."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from amqpstore.system.filenames import MARKER
from amqpstore_server.reports.reports import write_report


def is_data_directory(path: str) -> bool:
    """Tell whether a path is that of a data directory."""
    return os.path.isfile(os.path.join(path, MARKER))


def write_drill_report(directory: str, content: str) -> str:
    """Leave what a drill found, as JSON. Returns the path. Raises: OSError."""
    return write_report(directory, "drill", datetime.now(UTC), content)
