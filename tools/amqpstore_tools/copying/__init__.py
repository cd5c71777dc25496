"""Copies of stores, of running ones too, and the way back.

- `inventory`: what a store is made of, by the catalog of a snapshot;
- `linking`: which of its files get into a copy as links; `target`, the directory of a copy that is
  not finished;
- `copier`: a copy, written, read back, and a store only at the very end; `manifest`, what it says
  of itself; `checking`, which checksums are right;
- `swapping` and `restoring`: a copy takes a store's place, at once or not at all.

It knows the engine and nothing of the broker.
"""
