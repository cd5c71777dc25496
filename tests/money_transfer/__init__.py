"""An example transaction manager on `amqpstore_tools.pika`, which may be killed at each step.

- `transfer`: the example, and what a crash between its steps leaves.
- `ledger`: accounts and decisions in SQLite; `steps`: the steps by name.
"""
