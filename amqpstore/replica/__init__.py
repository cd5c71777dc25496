"""A follower's store: the copy of a leader's log that one member of a group keeps on its disk.

A follower is a second reader of the same log. Its log segments are byte for byte those of the
leader; its checkpoints, index files, compacted segments and quarantine are its own. So `Store.open`
on its directory is all that a promotion takes.

Synchronous and without sockets, like the rest of the engine. A single node imports none of it.

- `membership`: the file `MEMBER`, which makes a directory a member's
"""
