"""The catalog: tables that change atomically (LMDB), and what their rows mean.

- `catalog`: the tables; `lmdb_pages`: the check of all pages before they are mapped.
- `rows`, `shapes`: how a row is stored, and the form that it must have; `checks`: rows that
  contradict each other.
- `keys`, `tables`: the keys of the engine's tables, and their rows with types.
- `definitions`: a copy of the tables that only the catalog has.
- `backing`: the catalog and the files, passed together to all who read and write them.
"""
