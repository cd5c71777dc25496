"""Operators' work on a group of replicas: its keys in etcd, and the directories of members.

- `group`: the keys, read and changed by compare-and-set; `naming`: how members are named.
- `directory`: what makes a data directory a member's.
- `founding`: a store becomes a group; `joining`: members come and go.
- `leadership`: who leads; `status`: what people are shown of all of it.
"""
