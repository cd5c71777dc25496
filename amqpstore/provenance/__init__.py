"""Where a message came from, and what became of it, as far as the log still says it.

- `provenance`: what log and segments say of one message.
- `client_trails`: which clients had to do with which messages.
"""
