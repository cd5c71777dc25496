"""For how long a broker serves, and what a group has to do with it.

- `serving_term`: for a single node until it is stopped, for a leader until it is deposed.
- `replication_figures`: what a member's metrics tell of its group.
"""
