"""Streams: the log of a store, and queues and exchanges of a broker.

- `tap`: the log as a stream of changes.
- `consume`, `staged`: a queue as a stream, each message in exactly one micro-batch.
- `publish`: rows published to an exchange, each batch exactly once.
- `broker`: connections for both.
"""
