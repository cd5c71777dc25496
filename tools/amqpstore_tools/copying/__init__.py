"""Copies of stores, of running ones too, and the way back.

- `inventory`: what a store is made of, by the catalog of a snapshot.
- `target`, `linking`: the directory of an unfinished copy, and which files become links in it.
- `copier`, `manifest`, `checking`: a copy, its manifest, and the checksums of its files.
- `restoring`, `swapping`: a copy takes the place of a store, at once or not at all.
- `errors`: what copying and restoring may end with.

This package uses the engine and never the broker.
"""
