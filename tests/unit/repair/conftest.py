"""Repairs sync a lot, and these tests are not about the disk: they work in memory if they can."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_IN_MEMORY = "/dev/shm"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory like pytest's own, but in memory where the system has a file system there."""
    parent = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    path = tempfile.mkdtemp(prefix="amqpstore-repair-", dir=parent)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)
