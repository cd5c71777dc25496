"""Checkpoints, and compaction: what keeps the log short.

- `checkpoint`: writes the state at a position of the log; `checkpoint_state`: that state, kept up
  as the log grows.
- `batch_merge`: batches are merged first, so that a checkpoint costs per run.
- `index_writer`, `index_merge`: index files, written and merged.
- `compaction`: segments that are mostly garbage are merged.
"""
