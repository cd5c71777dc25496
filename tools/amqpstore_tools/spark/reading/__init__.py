"""Stores as data frames: plans on the driver, and reads in tasks.

- `reader`, `options`, `schemas`, `wanted`: the data source, its options, the columns of each view,
  and the filters of a query.
- `plan`, `live`, `leases`: on the driver: which task reads which segments, what is live in them,
  and how the segments of a running broker stay readable.
- `scanning`, `envelopes`: in a task: the records of a segment, and message heads and rows as
  columns.
- `messages`, `operations`, `findings`, `tables`: the views.
"""
