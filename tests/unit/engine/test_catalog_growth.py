"""The catalog's map cannot grow, as there is no address space: on the real path, in a process that
really has none."""

import subprocess
import sys
from pathlib import Path

_PREPARED = """
import resource
import sys

from amqpstore import DurabilityError, Envelope, Message, NoMemoryError, Run, Store
from amqpstore.catalog import catalog
from amqpstore.catalog.catalog import Change, LmdbCatalog

catalog._FIRST_MAP_BYTES = 32 << 20
directory = sys.argv[1]
ROW = "x" * (64 << 10)


def allow(more_bytes):
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    soft = resource.RLIM_INFINITY if more_bytes is None else used + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))
"""

_OF_A_CATALOG = """
found = LmdbCatalog(directory, True)
allow(16 << 20)
written = {}
for number in range(1000):
    try:
        found.commit([Change("vhosts", f"{number:04}", ROW), Change("users", f"{number:04}", 1)])
    except OSError as error:
        reason = str(error)
        break
    written[f"{number:04}"] = ROW
print("Cannot allocate memory" in reason, len(written) > 100)
for _ in range(3):
    # It is what it was, and small changes go on.
    allow(None)
    assert found.rows("vhosts") == written and found.rows("users").keys() == written.keys()
    allow(16 << 20)
    try:
        found.commit([Change("vhosts", "more", ROW * 10)])
        print("there was room")
    except OSError:
        found.commit([Change("users", "0000", 1)])
allow(None)
for number in range(300):
    found.commit([Change("vhosts", f"later {number:04}", ROW)])
    written[f"later {number:04}"] = ROW
found.close()
found = LmdbCatalog(directory, False)
print(found.rows("vhosts") == written)
"""

_OF_A_STORE = """
store = Store.open(directory)
queues = [store.create_queue({"name": 0})]
allow(16 << 20)
try:
    while len(queues) < 1000:
        queues.append(store.create_queue({"name": len(queues), "filler": ROW}))
except NoMemoryError as error:
    print("cannot grow" in str(error), "Nothing is lost" in str(error), len(queues) > 100)
store.publish([queues[0]], [Message(Envelope("", "first"), b"meanwhile")])
store.sync()
store.upkeep.checkpoint()
store.delete_queue(queues.pop())
allow(None)
for _ in range(300):
    queues.append(store.create_queue({"name": len(queues), "filler": ROW}))
store.publish([queues[-1]], [Message(Envelope("", "last"), b"afterwards")])
store.close()
store = Store.open(directory)
definitions = {one.id: one.definition for one in store.queues.values()}
print(definitions == {one.id: one.definition for one in queues})
taken = [store.take(store.queues[one.id], 1) for one in (queues[0], queues[-1])]
print([message.body for run in taken for message in run.messages])
store.close()
"""


def run(script: str, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PREPARED + script, str(directory)],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_commit_that_the_map_has_no_room_for_changes_nothing(tmp_path: Path) -> None:
    assert run(_OF_A_CATALOG, tmp_path) == ["True True", "True"]


def test_a_store_goes_on_when_there_is_memory(tmp_path: Path) -> None:
    """A declare is refused meanwhile, and messages are taken as before."""
    lines = run(_OF_A_STORE, tmp_path / "store")
    assert lines == ["True True True", "True", "[b'meanwhile', b'afterwards']"]
