"""The archive of a log as Parquet files, by virtual host, queue and hour.

An archive is a directory of Parquet files and of manifests that say which of them count.

- `layout`: the names of files in an archive; `events`: the form of a row; `manifest`: what one run
  added.
- `archiving`: one run, in three steps; `planning`: find what is new; `writing`: write some
  segments, in a task; `committing`: make the new files part of the archive atomically.
- `reading`: the events of a queue and a time as a data frame.
- `errors`: errors of archives.
"""
