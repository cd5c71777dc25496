"""Channels: what one client publishes, gets, acks and commits.

- `channel`: all of it, in the order of its tags; `outlet`: the way to the client.
- `publishing`: into queues, and the confirms for it; `gets`: those that may wait.
- `local_transaction`: what waits for a commit; `branches`: distributed transactions.
"""
