"""Replication of one store to other machines: what a member decides, without sockets, disk or
clock.

Nothing here opens a file or a connection. A driver hands in what happened, with the time, and
carries out the effects. What agreement needs is left to etcd: one transaction decides each election
and each change of the list of in-sync replicas.

- `timing`: how long things may take
- `keys`: what is kept in etcd, and the transactions on it
- `group_changes`: what operators change there
- `frames`: what members send each other
- `codec`: frames on the wire; `frame_tags`: by what one knows that they are the peer's
- `effects`: what a member asks of its driver
- `notes`: what a member has seen of its group, and by what it knows an etcd again
- `registering`: which process is that of a member
- `replica_log`: what a member knows of its log on disk
- `following`: a follower's stream and promises
- `electing`: a candidacy
- `tenure`: a leader's key in etcd, and until when it holds
- `in_sync`: the list of in-sync replicas, and whom a leader waits for
- `progress`: a follower as its leader sees it
- `slow_followers`: which followers hold the others up
- `leading`: what a leader ships and commits, and whom it lets in
- `member`: the one state machine of a process, over these three
"""
