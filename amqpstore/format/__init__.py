"""The format of records, messages and index files, and what is computed from it alone.

- `records`: framing and checksums; `windows`: the records of a file that is not in memory.
- `batches`, `enqueue_order`: the one rule for what a batch is, where a torn tail starts, and what a
  batch may enqueue.
- `message`: an envelope and a body; `compression`: of bodies, with zstd.
- `runs`: messages of contiguous sequences; `index`: the entries of a queue's files.
- `departures`: every way in which a message leaves, with a number for the log.
- `limits`: sizes that the engine chooses for itself.
"""
