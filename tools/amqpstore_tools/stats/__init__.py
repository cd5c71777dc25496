"""`amqpstore stats`: how large a store is, how old, and how much of it is garbage.

- `figures`: the figures; `picture`: their display in the terminal.
"""
