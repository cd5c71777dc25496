"""The background work of an open store.

- `upkeep`: what is done between batches; `maintenance`: starts what is due, and has the results
  used.
- `checkpointing`, `compacting`, `definitions_copier`: when each of them is due, and the use of what
  it has written.
- `kept_segments`, `retired`: which files go to quarantine, and which are removed.
- `background`, `worker`: one piece of work at a time, and the thread that does it.
- `statistics`, `figures`: how much there is of everything, for those who watch;
  `watched_accounts`: the part of it that a worker changes.
"""
