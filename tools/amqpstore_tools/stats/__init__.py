"""`amqpstore stats`: how large a store is, how old, and how much of it is garbage.

- `figures`: the figures; `picture`: how they are shown in the terminal.
"""
