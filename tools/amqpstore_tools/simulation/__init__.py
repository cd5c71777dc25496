"""A disk in memory that loses power, and calls to it that fail: the basis of the proofs.

- `memory_files`, `memory_catalog`: files, directories and the catalog, with durable and unsynced
  state.
- `nodes`, `operations`: files and directories by number, and the recorded operations.
- `stores`: a store on all of that, in one thread.
- `crash_images`: everything that a power cut may leave.
- `wrapped_files`, `faulty_files`: files around others; calls that fail, and bits that flip.
"""
