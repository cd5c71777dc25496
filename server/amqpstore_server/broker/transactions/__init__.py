"""Moves of messages between queues, all at once or not at all.

- `transaction`: publishes and acks in one.
- `dead_letter`: messages that leave a queue without being consumed.
- `waiting_letters`: dead letters that wait in their queue, and how they go on.
- `exchange_queues`: messages that leave the queues in which exchanges keep them.
- `history`, `replay`: copies of consumed messages, and their return to a queue.
- `selected`, `dead_letter_replay`: messages that an operator moves, copies or deletes, and dead
  letters that he sends back.
- `prepared_work`: prepared transactions that are still in doubt.
"""
