"""A disk in memory that loses power, and calls to it that fail: what the proofs stand on.

- `memory_files`: files and directories, durable and not yet; `nodes`: what their names stand for;
  `operations`: what the disk was asked to do; `memory_catalog`: the catalog beside them.
- `crash_images`: all that a power cut may leave; `faulty_files`: calls that fail, bits that flip.
"""
