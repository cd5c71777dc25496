"""`amqpstore archive`, `replay` and `as-of`: the log of a store as Parquet files.

An archive is a directory of Parquet files, by virtual host, queue and hour, and of manifests that
say which of them count. `layout` names all of it, `events` says what a row is.

- Writing: `planning` looks at the store and says what is new, `writing` is what a task does with
  some segments, `committing` makes the new files part of the archive at one moment.
- Reading: `reading` has the events of a queue and a time as a data frame; `holding` asks what a
  queue held.
"""
