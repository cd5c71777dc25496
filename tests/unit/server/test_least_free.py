"""Space that stays free by default is much of a large disk, and a share of a small one."""

import shutil
from typing import NamedTuple

import pytest

from amqpstore_server.config.config import Config
from amqpstore_server.config_values import least_free_bytes

MIB, GIB = 1 << 20, 1 << 30


class Usage(NamedTuple):
    total: int
    used: int = 0
    free: int = 0


@pytest.mark.parametrize(
    ("total", "segment_bytes", "blocked_below"),
    [
        (1000 * GIB, 16 * MIB, GIB),
        (1000 * GIB, GIB, 3 * GIB),
        (5 * GIB, 16 * MIB, GIB // 2),
        (512 * MIB, 16 * MIB, 512 * MIB // 10),
    ],
)
def test_the_default_fits_the_disk(
    total: int, segment_bytes: int, blocked_below: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(total))
    config = Config(data="not/there/yet", segment_bytes=segment_bytes)
    # The store blocks publishers below twice of it.
    assert abs(2 * least_free_bytes(config) - blocked_below) <= 1


def test_what_is_configured_holds() -> None:
    assert least_free_bytes(Config(least_free_bytes=0)) == 0
    assert least_free_bytes(Config(least_free_bytes=77)) == 77
