"""Queues: arrival, dispatch and removal of messages.

- `queue`: one queue, as its settings say; `backlog`: its ready messages, and how they leave;
  `priorities`: the store's queues that it consists of; `message_sums`: how much there is in it.
- `kinds`: kinds of queues, those that clients declare and the broker's own.
- `consumer`, `dispatch`: which consumer gets what; `waiting`: the gets that wait for a message.
- `letters`: dead letters that wait until other queues take them.
- `room`: how much fits before it is full.
- `purges`: purges, and how they are undone.
- `browsing`: walks through a queue that leave it as it is.
- `delivery`: deliveries that are unacked; `pending_moves`: messages that are read back from disk to
  be moved elsewhere.
"""
