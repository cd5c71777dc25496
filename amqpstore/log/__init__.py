"""The log: files of records, and the batch at their end on its way to the disk.

- `log`: all segments with the open batch; `batch`: one batch, until it is durable.
- `segments`: one file of records; `segment_accounts`: what is live in each, and what is garbage;
  `large_reads`: reads of large messages, in pieces.
- `filling`, `spares`: zeros that a segment is filled with ahead of use, and files of dropped
  segments that are used again; `space`: the reserve for a full disk.
- `companion`: who sends a leader's batches to others.
- `open_state`: whether the store is open, and the error that ended all writing;
  `grouped_definitions`: changes of the catalog, which are committed before the batch that names
  what they define.
- `measures`: how long all of this takes.
"""
