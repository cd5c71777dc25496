"""Datasyncs in the background: what the kernel is asked for, and what its answers become."""

import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpstore.system.datasyncs import KernelDatasyncs
from amqpstore.system.files import File, OsFile, OsFiles
from amqpstore_tools.simulation.memory_files import MemoryFiles

_FDSYNC = 3


@pytest.fixture
def signal() -> Iterator[int]:
    made = os.eventfd(0, os.EFD_NONBLOCK)
    yield made
    os.close(made)


@pytest.fixture
def datasyncs(signal: int) -> Iterator[KernelDatasyncs]:
    opened = KernelDatasyncs.open(signal)
    if opened is None:
        pytest.skip("this kernel has none")
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    created = OsFiles().create(str(tmp_path / "file"))
    yield created
    created.close()


def test_its_end_is_signalled_and_told_once(
    datasyncs: KernelDatasyncs, file: File, signal: int
) -> None:
    poll = select.poll()
    poll.register(signal, select.POLLIN)
    for octets in (b"one", b"two"):
        file.append([octets])
        assert datasyncs.start(file)
        assert poll.poll(60_000)
        assert os.eventfd_read(signal) == 1
        assert datasyncs.is_done()
        assert not datasyncs.is_done()


def test_who_waits_for_it_needs_no_signal(datasyncs: KernelDatasyncs, file: File) -> None:
    assert datasyncs.start(file)
    assert datasyncs.is_done(wait=True)


def test_the_kernel_is_asked_for_a_datasync_of_this_file(
    datasyncs: KernelDatasyncs, file: File, tmp_path: Path, signal: int
) -> None:
    other = OsFiles().create(str(tmp_path / "other"))
    for one in (file, other, file):
        assert datasyncs.start(one)
        # aio_lio_opcode and aio_fildes, aio_resfd of linux/aio_abi.h.
        request = datasyncs._request.raw
        assert struct.unpack_from("<HhI", request, 16)[::2] == (_FDSYNC, one.descriptor)
        assert struct.unpack_from("<II", request, 56) == (1, signal)
        assert datasyncs.is_done(wait=True)
    other.close()


def test_a_sync_that_fails_raises_as_datasync_does(
    datasyncs: KernelDatasyncs, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's answer is changed, as no disk here can be made to fail."""
    wait = datasyncs._wait

    def answered(*arguments: Any) -> Any:
        got = wait(*arguments)
        struct.pack_into("<q", datasyncs._event, 16, -5)
        return got

    monkeypatch.setattr(datasyncs, "_wait", answered)
    assert datasyncs.start(file)
    with pytest.raises(OSError, match="Input/output error") as raised:
        datasyncs.is_done(wait=True)
    assert raised.value.errno == 5
    assert not datasyncs.is_done()


def test_what_cannot_be_synced_in_the_background_is_not_started(
    datasyncs: KernelDatasyncs, signal: int
) -> None:
    reading, writing = os.pipe()
    for file in (MemoryFiles().create("/file"), OsFile("a pipe", writing)):
        assert not datasyncs.start(file)
    os.close(reading)
    os.close(writing)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(signal)
