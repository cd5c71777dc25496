"""Frames and bytes into connections for as long as asked, guided by the coverage of the code:

    python -m pip install atheris
    python -m tests.fuzz.guided --seconds 3600

An input is a list of chunks: a frame of a kind, a channel and a payload, or bytes as they are. Any
exception ends the run, as does a wrong answer, or a broker that no longer serves others; the input
is then in a file that is named, and given as an argument it is tried again.
"""

import argparse
import contextlib
import itertools
import logging
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["amqpstore_server.protocol", "amqpstore_server.amqp", "amqpstore_server.broker"]
):
    from amqpstore_server.protocol.content import BasicProperties
    from amqpstore_server.protocol.methods import METHODS, BasicPublish
    from amqpstore_server.protocol.spec import PROTOCOL_HEADER
    from tests.fuzz.simulated import SimulatedClient, SimulatedServer
    from tests.fuzz.test_codec import frame
    from tests.fuzz.test_connection import check_answers, check_served, content

_INPUTS_PER_SERVER = 300
_CHUNK = struct.Struct(">BBB")
_KINDS = (1, 1, 1, 1, 2, 3, 8, None)
_CHANNELS = (0, 1, 1, 1, 2, 2, 3, 65_535)


def octets_of(data: bytes) -> Iterator[bytes]:
    """Yield what the chunks of an input stand for."""
    offset = 0
    while offset + _CHUNK.size <= len(data):
        kind, channel, size = _CHUNK.unpack_from(data, offset)
        offset += _CHUNK.size
        payload = data[offset : offset + size]
        offset += size
        frame_type = _KINDS[kind % len(_KINDS)]
        if frame_type is None:
            yield payload
        else:
            yield frame(frame_type, _CHANNELS[channel % len(_CHANNELS)], payload)


def seeds() -> Iterator[bytes]:
    """Yield inputs to begin with: each method, and a publish with its content."""
    for method in METHODS.values():
        with contextlib.suppress(TypeError):  # it has arguments without a default
            payload = method().encode()
            for channel in (0, 1):
                yield b"\xff" + _CHUNK.pack(0, channel, len(payload)) + payload
    publish = content(
        1, BasicPublish(exchange="", routing_key="q"), b"body", BasicProperties(), 0, 1
    )
    yield b"\xff" + _CHUNK.pack(7, 0, len(publish)) + publish
    yield b"\0" + _CHUNK.pack(7, 0, len(PROTOCOL_HEADER)) + PROTOCOL_HEADER


class Target:
    """Gives inputs to connections of one broker after the other."""

    def __init__(self) -> None:
        self._server = SimulatedServer()
        self._count = 0

    def __call__(self, data: bytes) -> None:
        """Try one input. Its first byte says whether the connection is open before."""
        self._count += 1
        if self._count % _INPUTS_PER_SERVER == 0:
            check_served(self._server)
            self._server.store.abandon()
            self._server = SimulatedServer()
        if data[:1] < b"\x20":
            client = SimulatedClient(self._server)
        else:
            client = SimulatedClient.opened(self._server, channels=2)
        for octets in itertools.islice(octets_of(data[1:]), 50):
            client.send(octets)
        check_answers(client.answers)
        client.lose()


def run(target: Callable[[bytes], None], seconds: int, inputs: list[str]) -> None:
    """Fuzz, or try the files in `inputs`. Ends the process."""
    with tempfile.TemporaryDirectory(prefix="amqpstore-fuzz-") as corpus:
        for number, seed in enumerate(seeds()):
            Path(corpus, str(number)).write_bytes(seed)
        arguments = inputs or [corpus, f"-max_total_time={seconds}", "-max_len=4096"]
        atheris.Setup([sys.argv[0], "-rss_limit_mb=2048", "-timeout=20", *arguments], target)
        atheris.Fuzz()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("inputs", nargs="*")
    asked = parser.parse_args()
    logging.disable()
    run(Target(), asked.seconds, asked.inputs)
