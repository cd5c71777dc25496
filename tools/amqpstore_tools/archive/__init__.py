"""The archive of a log as Parquet files, by virtual host, queue and hour.

An archive is a directory of Parquet files and of manifests that say which of them count.

- `layout`: the names of files in an archive; `events`: what a row is; `manifest`: what one run
  added.
- `archiving`: one run, in three steps; `planning`: find what is new; `writing`: write some
  segments, in a task; `committing`: make the new files part of the archive at one moment.
- `reading`: the events of a queue and a time as a data frame.
- `errors`: what can be wrong with an archive.
"""
