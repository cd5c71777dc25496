"""The identity of a directory: whether it is a store, and which store it is.

- `marker`: the file that makes a directory a store.
- `identity`: which store it is, by marker, catalog and segments.
- `expected_segments`: which segments it should have.
"""
