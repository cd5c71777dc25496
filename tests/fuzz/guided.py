"""Clients of any behaviour for as long as asked, guided by the coverage of the broker's code:

    python -m pip install atheris
    python -m tests.fuzz.guided --seconds 3600

Each input is a script (`tests/fuzz/scripts.py`) for two clients of a new broker. An exception
ends the run, as does what `tests/fuzz/test_connection.py` checks: a wrong answer, a broker that no
longer serves others, queues that do not have what they say, here or after a restart. The input is
then in a file that is named; given as an argument it is tried again. With `--corpus` the inputs
that found something new are kept in a directory, for the next run.
"""

import argparse
import contextlib
import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["amqpstore_server"]):
    from tests.fuzz.scripts import actions_of, seeds
    from tests.fuzz.simulated import SimulatedClient, SimulatedServer
    from tests.fuzz.test_connection import opened, run


def connected(server: SimulatedServer) -> SimulatedClient:
    """With two channels; the first client also makes what the scripts speak of."""
    if "q1" in server.broker.vhost("/").queues:
        return SimulatedClient.opened(server, channels=2)
    return opened(server)


def try_input(octets: bytes) -> None:
    """Do what an input says. Its first byte says how clients begin, and how they take a close."""
    first = octets[:1] or b"\0"
    make_client = SimulatedClient if first >= b"\xe0" else connected
    run(actions_of(octets[1:]), make_client, politely=first[0] % 2 == 0)


def fuzz(corpus: str, seconds: int, inputs: list[str]) -> None:
    """Fuzz, or try the files in `inputs`. Ends the process."""
    for number, seed in enumerate(seeds()):
        for first in (b"\0", b"\1", b"\xff"):
            Path(corpus, f"seed-{number}-{first[0]}").write_bytes(first + seed)
    arguments = inputs or [corpus, f"-max_total_time={seconds}", "-max_len=1024"]
    atheris.Setup([sys.argv[0], "-rss_limit_mb=2048", "-timeout=60", *arguments], try_input)
    atheris.Fuzz()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", default="")
    parser.add_argument("inputs", nargs="*")
    asked = parser.parse_args()
    logging.disable()
    with contextlib.ExitStack() as stack:
        directory = asked.corpus or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="amqpstore-fuzz-")
        )
        fuzz(directory, asked.seconds, asked.inputs)
