"""Streams whose reader stands still, or whose file takes nothing."""

import fcntl
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from amqpstore_server.logs import set_up, streams
from amqpstore_server.logs.streams import DecoupledStream
from tests.waiting import wait_until

LINE = "x" * 99 + "\n"


class Pipe(NamedTuple):
    """The smallest pipe there is, and what is written to it."""

    reader: int
    stream: DecoupledStream
    lost: list[int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    lost: list[int] = []
    stream = DecoupledStream(writer, lost.append)
    yield Pipe(reader, stream, lost)
    os.close(reader)  # a thread that still writes gets EPIPE
    while stream._queued_bytes:
        # What was still queued would go to the next pipe that has this number.
        stream.flush()
    os.close(writer)


def read_lines(pipe: Pipe, count: int) -> list[str]:
    received = b""
    while received.count(b"\n") < count or not received.endswith(b"\n"):
        received += os.read(pipe.reader, 1 << 16)
    return received.decode().splitlines()


def test_lines_come_in_their_order(pipe: Pipe) -> None:
    expected = [str(number) for number in range(10_000)]
    for line in expected:
        pipe.stream.write(f"{line}\n")
    assert read_lines(pipe, 10_000) == expected
    assert not pipe.lost


def test_lines_that_come_together_are_written_together(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_PAUSE_S", 60.0)
    pipe.stream.write("first\n")
    assert read_lines(pipe, 1) == ["first"]
    for number in range(3):
        pipe.stream.write(f"{number}\n")
    pipe.stream.flush()
    assert os.read(pipe.reader, 100) == b"0\n1\n2\n"


def test_many_lines_do_not_wait_for_more(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PAUSE_S", 60.0)
    pipe.stream.write("first\n")
    assert read_lines(pipe, 1) == ["first"]
    count = streams._CHUNK_BYTES // len(LINE) + 1
    for _ in range(count):
        pipe.stream.write(LINE)
    assert read_lines(pipe, 1)


def test_a_reader_that_stands_still_costs_lines_but_no_time(pipe: Pipe) -> None:
    for _ in range(30_000):
        pipe.stream.write(LINE)
    lines = read_lines(pipe, (1 << 20) // len(LINE))
    wait_until(lambda: bool(pipe.lost), "the number of lost lines")
    pipe.stream.write("goes on\n")
    while lines[-1] != "goes on":
        lines += read_lines(pipe, 1)
    assert set(lines) == {LINE.strip(), "goes on"}
    assert len(lines) - 1 + sum(pipe.lost) == 30_000


def test_while_the_interpreter_ends_nobody_waits_for_the_thread(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends wherever it is, perhaps with the lock."""
    pipe.stream.write("first\n")
    assert read_lines(pipe, 1) == ["first"]
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pipe.stream._changed:
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    pipe.stream.write("last\n")
    pipe.stream.flush()
    assert read_lines(pipe, 1) == ["last"]
    os.write(pipe.stream.fileno(), LINE.encode() * (4096 // len(LINE)))
    pipe.stream.write("x" * 4096 + "\n")  # the pipe is full: that is not waited for
    done.set()
    holder.join()


def test_a_file_that_takes_nothing_raises_nothing() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    lost: list[int] = []
    stream = DecoupledStream(descriptor, lost.append)
    stream.write(LINE * 3)
    stream.flush()
    reader, writer = os.pipe()
    os.dup2(writer, descriptor)  # there is room again
    stream.write(LINE)
    assert os.read(reader, 1000).decode() == LINE
    wait_until(lambda: lost == [3], lambda: lost)
    for one in (descriptor, reader, writer):
        os.close(one)


def test_a_file_that_others_have_made_non_blocking_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    for _ in range(1000):
        pipe.stream.write(LINE)
    assert read_lines(pipe, 1000) == [LINE.strip()] * 1000
    assert not pipe.lost


def test_what_was_lost_is_a_line_of_the_log(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    from amqpstore_server.logs import streams

    stream = DecoupledStream(pipe.stream.fileno(), streams._tell_lost)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    level = logging.getLogger().level
    set_up("info", "text")
    try:
        for _ in range(20_000):
            logging.getLogger("test").info("a line %s", "x" * 60)
        lines = read_lines(pipe, 5000)
        while "log lines lost" not in lines[-1]:
            lines += read_lines(pipe, 1)
    finally:
        logging.getLogger().setLevel(level)
    assert all("level=info" in line for line in lines[:-1])
    number = int(lines[-1].rpartition("lines=")[2].split()[0])
    assert number + len(lines) - 1 == 20_000
