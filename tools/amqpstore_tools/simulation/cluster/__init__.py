"""A group of members in one process and one thread, in virtual time, from one seed.

- `events`: what happens next, by time
- `etcd`: a linearizable store of keys with revisions and leases, and its faults
- `network`: ordered connections that can be cut, one way or both
- `machine`: a process with its log on a disk, which carries out what its member decides
- `history`: a random history with faults, and what must hold in it
"""
