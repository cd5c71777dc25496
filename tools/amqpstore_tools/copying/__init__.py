"""Copies of stores, of running ones too, and the way back.

- `snapshot`: what a store is made of at one instant, whoever writes it meanwhile;
- `pinning`: that what is in a snapshot stays there until it is copied;
- `copier`: a copy, written, read back, and a store only at the very end; `manifest`, what it says
  of itself; `checking`, which checksums are right;
- `swapping` and `restoring`: a copy takes a store's place, at once or not at all.

It knows the engine and nothing of the broker.
"""
