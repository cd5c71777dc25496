"""A store that no broker runs on, read without being opened or changed.

- `image`: the entry point: a store, read by the engine's own codec and recovery.
- `read_only_files`, `scanning`: files that can only be read, and the records of a segment.
- `locks`, `snapshot`, `instant`, `pinning`: the lock that keeps a broker out, or, while one runs,
  its catalog at one instant and files that stay readable.
- `catalog`: the tables of LMDB as far as they can be read.
- `listing`, `segments`, `queues`, `prepared`: the files, and the content of each.
- `recovering`, `messages`, `contents`: recovery in memory, messages by id, and records decoded;
  `bulk_reading`: many messages at a time; `soundness`: whether something is missing;
  `short_log`: whether the log is, so that the store must not be changed;
  `foreign_files`: what belongs to another user, so that the owner of the store may not open it;
  `provenance`: where a message came from, and what became of it.
- `reports`: what a tool leaves in the data directory of a broker, for its pages; `locations`: where
  else a tool may write, and how on a full disk; `output`: the file that a user named.
- `progress`, `exits`, `json_output`, `terminal`, `times`: the command line of all these tools.
"""
