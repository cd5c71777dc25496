"""A disk in memory that loses power, and calls to it that fail: what the proofs stand on.

- `memory_files`, `memory_catalog`: files, directories and the catalog, durable and not yet.
- `nodes`, `operations`: what their names stand for, and what the disk was asked to do.
- `stores`: a store on all of that, in one thread.
- `crash_images`: everything that a power cut may leave.
- `faulty_files`: calls that fail, and bits that flip.
"""
