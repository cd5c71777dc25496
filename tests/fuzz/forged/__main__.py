"""Forge and try, each in a process of its own.

    python -m tests.fuzz.forged DIRECTORY SEED FIRST COUNT [WAY]

A line says what was forged wherever it did not end as it should, with the traceback behind it; the
exit code is 1 then. `SEED FIRST 1` does one of them again.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import shutil
import sys
import traceback

from tests.fuzz.forged.forger import Forger
from tests.fuzz.forged.stores import make_store
from tests.fuzz.forged.trying import WAYS

MEMORY_BYTES = 2 << 30
CPU_S = 60
_STORES = 8


def main(root: str, seed: int, first: int, count: int, only: str = "") -> int:
    """Try `count` forgeries. Returns how many did not end as they should."""
    os.makedirs(root, exist_ok=True)
    logging.disable(logging.CRITICAL)
    failed = 0
    for number in range(first, first + count):
        template = f"{root}/store-{number % _STORES}"
        if not os.path.exists(template):
            make_store(template, number % _STORES)
        scratch = f"{root}/{seed}-{number}"
        os.mkdir(scratch)
        shutil.copytree(template, f"{scratch}/store")
        outside = sorted(os.listdir(root))
        child = os.fork()
        if not child:
            _limit()
            os._exit(_try_one(scratch, seed, number, only))
        status = os.waitpid(child, 0)[1]
        strangers = sorted(os.listdir(root)) != outside
        if status or strangers:
            failed += 1
            what = "a file was made outside" if strangers else f"status {status}"
            with open(f"{scratch}/said", encoding="utf-8") as file:
                words = file.read()
            print(f"### {seed} {number} {what}: {words}", flush=True)  # noqa: T201 - its output
        shutil.rmtree(scratch)
    return failed


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def _try_one(scratch: str, seed: int, number: int, only: str) -> int:
    forger = Forger(f"{seed} {number}")
    ways = [one for one in WAYS if only in one.name]
    (way,) = forger.random.choices(ways, [one.weight for one in ways])
    said = os.open(f"{scratch}/said", os.O_WRONLY | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    faulthandler.enable(said)
    forger.did = f"{way.name}: "
    try:
        way.run(forger, f"{scratch}/store", scratch)
    except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
        os.write(said, f"{forger.did}\n{traceback.format_exc()}".encode(errors="replace"))
        return 1
    return 0


if __name__ == "__main__":
    _root, _seed, _first, _count = sys.argv[1:5]
    sys.exit(bool(main(_root, int(_seed), int(_first), int(_count), *sys.argv[5:])))
