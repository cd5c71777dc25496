"""Queues: what they take in, who gets it, and what leaves them.

- `queue`: one queue, as its settings say; `backlog`: what is ready in it, and how that leaves;
  `priorities`: the store's queues that it consists of.
- `kinds`: of queues, those that clients declare and the broker's own.
- `consumer`, `dispatch`: which consumer gets what; `waiting`: the gets that wait for a message.
- `delivery`: what went out and is unacked; `leaving`: what is read back from the disk to go out.
"""
