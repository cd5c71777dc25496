"""Measures how fast Spark reads a store: `python -m tests.spark.measure DIR`.

DIR may be made by `python -m tests.bench store memory --messages 2000000 --keep --data DIR`. All
rows of view `messages` are read and discarded (format `noop`), several times in one session; the
first time also starts Python on the executors. Processor time is that of this process and all below
it, Spark's JVM and its Python workers: rows per second of processor time are the rate of one free
core.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from amqpstore_tools.spark.sessions import session


def processor_s() -> float:
    """Return the processor time of this process and its descendants, in seconds."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        # User and system time, its own and that of its children that have ended.
        ticks[int(name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid, used in ticks.items():
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        total += used if above else 0
    return total / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.measure", description=__doc__)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--master", default="local[2]", help="default: local[2]")
    parser.add_argument("--columns", help="some columns, by commas; default: all")
    parser.add_argument("--no-bodies", action="store_true")
    parser.add_argument("--times", type=int, default=4, help="default: 4")
    arguments = parser.parse_args()
    spark = session(arguments.master)
    reader = spark.read.format("amqpstore").option("bodies", str(not arguments.no_bodies))
    if arguments.columns:
        reader = reader.option("columns", arguments.columns)
    rows = reader.load(arguments.directory).count()
    for _ in range(arguments.times):
        frame = reader.load(arguments.directory)
        before, started = processor_s(), time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        wall = time.perf_counter() - started
        used = processor_s() - before
        sys.stdout.write(
            f"{rows} rows in {wall:.2f} s: {rows / wall:,.0f} a second; "
            f"{used:.2f} s of processors: {rows / used:,.0f} a second of one\n"
        )
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
