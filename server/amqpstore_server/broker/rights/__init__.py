"""The rights of users.

- `permissions`: by the names of queues and exchanges; `scopes`: by a token.
- `quotas`: how many connections, channels and queues users and virtual hosts may have.
"""
