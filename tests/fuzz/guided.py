"""Any bytes for as long as asked, guided by the coverage of the broker's code:

    python -m pip install atheris
    python -m tests.fuzz.guided clients --seconds 3600
    python -m tests.fuzz.guided codec --seconds 600

For `clients` each input is a script (`tests/fuzz/scripts.py`) for two clients of a new broker, for
`codec` it is what a decoder reads, or a stream of frames and where its reads end. An exception
ends the run, as does what `tests/fuzz/test_connection.py` and `tests/fuzz/test_codec.py` check: a
wrong answer, a broker that no longer serves others, queues that do not have what they say, here or
after a restart; an error of another kind, a value that does not survive being encoded, frames that
mean something else in other reads. The input is then in a file that is named; given as an argument
it is tried again. With `--corpus` the inputs that found something new are kept in a directory, for
the next run.
"""

import argparse
import contextlib
import logging
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import atheris

with atheris.instrument_imports(include=["amqpstore_server"]):
    from amqpstore_server.protocol.field_table import encode_table
    from amqpstore_server.protocol.methods import METHODS
    from tests.fuzz.scripts import KEYS, VALUES, actions_of, seeds
    from tests.fuzz.simulated import SimulatedClient, SimulatedServer
    from tests.fuzz.test_codec import (
        ack,
        fuzz_header,
        fuzz_method,
        fuzz_receiver,
        fuzz_table,
        published,
    )
    from tests.fuzz.test_connection import opened, run


class Target(NamedTuple):
    """A target that inputs are tried on. `seeds` are the first inputs."""

    try_input: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def connected(server: SimulatedServer) -> SimulatedClient:
    """Return a client with two channels; the first client also declares what the scripts use."""
    if "q1" in server.broker.vhost("/").queues:
        return SimulatedClient.opened(server, channels=2)
    return opened(server)


def try_clients(octets: bytes) -> None:
    """Do what an input says. Its first byte says how clients begin, and how they take a close."""
    first = octets[:1] or b"\0"
    make_client = SimulatedClient if first >= b"\xe0" else connected
    run(actions_of(octets[1:]), make_client, politely=first[0] % 2 == 0)


def seeds_of_clients() -> Iterator[bytes]:
    for seed in seeds():
        yield from (first + seed for first in (b"\0", b"\1", b"\xff"))


def try_stream(octets: bytes) -> None:
    """Read frames in one read, and in others that the first two bytes say."""
    fuzz_receiver(octets[2:], [*octets[:2]])


DECODERS = (try_stream, fuzz_method, fuzz_table, fuzz_header)


def try_codec(octets: bytes) -> None:
    """Decode an input, as its first byte says."""
    if octets:
        DECODERS[octets[0] % len(DECODERS)](octets[1:])


def seeds_of_codec() -> Iterator[bytes]:
    stream, method, table, header = (bytes([number]) for number in range(len(DECODERS)))
    publishes = b"".join(map(published, range(6)))
    for octets in (publishes, publishes[:-1], b"".join(map(ack, range(1, 8))) + publishes):
        yield stream + b"\x03\x50" + octets
    for ids in METHODS:
        yield method + struct.pack(">HH", *ids) + bytes(16)
    for value in VALUES:
        yield table + encode_table(dict.fromkeys(KEYS[:2], value))
    start = publishes.index(b"\2\0\1") + 7
    yield header + publishes[start : publishes.index(b"\xce\3\0\1")]


TARGETS = {
    "clients": Target(try_clients, seeds_of_clients),
    "codec": Target(try_codec, seeds_of_codec),
}


def fuzz(target: Target, corpus: str, seconds: int, inputs: list[str]) -> None:
    """Fuzz, or try the files in `inputs`. Ends the process."""
    for number, seed in enumerate(target.seeds()):
        Path(corpus, f"seed-{number}").write_bytes(seed)
    arguments = inputs or [corpus, f"-max_total_time={seconds}", "-max_len=1024"]
    options = ["-rss_limit_mb=2048", "-timeout=60"]
    atheris.Setup([sys.argv[0], *options, *arguments], target.try_input)
    atheris.Fuzz()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", default="")
    parser.add_argument("inputs", nargs="*")
    asked = parser.parse_args()
    logging.disable()
    with contextlib.ExitStack() as stack:
        directory = asked.corpus or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="amqpstore-fuzz-")
        )
        fuzz(TARGETS[asked.target], directory, asked.seconds, asked.inputs)
