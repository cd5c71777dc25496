"""The operating system, as the store uses it: files, syncs, descriptors and clocks.

- `files`: every file goes through this interface; `filenames`: the names in a data directory;
  `ownership`: whose the files are that root creates.
- `durability`: syncs whose failure is fatal; `datasyncs`: syncs that the kernel does in the
  background.
- `descriptors`: the limit of open files.
- `replacing`: a small file is replaced as a whole; `removal`: files that are not needed any more.
- `clock`: the wall clock and the monotonic clock.
"""
