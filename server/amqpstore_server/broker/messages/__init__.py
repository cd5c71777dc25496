"""The parts of a message that the broker reads, and the headers it adds to dead letters.

- `envelope`: exchange, routing keys and the properties that matter, such as priority.
- `filters`: which messages an operator means.
- `deaths`: the headers that say which queues a message left without being consumed, and why;
  `cycles`: whether it comes back to one of them; `shortening`: which of them are left out where
  they are too many.
"""
