"""The background work of an open store.

- `maintenance`: when checkpoints and compaction are due, and the use of their results.
- `worker`: the thread that does the work.
- `figures`: how much there is of everything, for those who watch.
"""
