"""The provenance of a message: where it came from, and what became of it, as far as the log still
says so.

- `provenance`: what log and segments say of one message.
- `trails`: the answer, step by step.
- `origins`: the messages that it was before.
- `log_reading`: segments that are read while a broker may be writing and removing some.
- `client_trails`: which clients had to do with which messages.
- `store_provenance`: both of them for an open store.
"""
