"""A group of members in one process and one thread, in virtual time, from one seed.

- `events`: the events to come, by time
- `etcd`: a linearizable store of keys with revisions and leases, and its faults
- `network`: ordered connections that can be cut, one way or both
- `disk`: the files of a machine, which outlive its process
- `machine`: a process with its disk, which carries out what its member decides
- `invariants`: what must hold at each moment
- `history`: a random history with faults, after which all must go on
- `nemesis`: the faults of such a history
- `returns`: histories in which a member, a follower's disk or etcd comes back in an older state
- `drills`: histories in which one thing goes wrong, and how long clients wait
"""
