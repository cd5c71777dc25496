"""Copies of stores, of running ones too, and restoring them.

- `inventory`: the files of a store, by the catalog of a snapshot.
- `target`, `linking`: the directory of an unfinished copy, and which files become links in it.
- `copier`, `manifest`, `checking`: a copy, its manifest, and the checksums of its files.
- `restoring`, `swapping`: replace a store by a copy, atomically.
- `errors`: errors of copying and restoring.

This package uses the engine and never the broker.
"""
