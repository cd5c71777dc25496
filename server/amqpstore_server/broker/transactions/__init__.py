"""What happens all at once or not at all: messages that move between queues.

- `transaction`: publishes and acks in one.
- `dead_letter`: messages that nobody consumed, on their way to where dead letters go.
- `exchange_queues`: messages that exchanges keep in queues of their own, on their way out of them.
- `history`, `replay`: copies of consumed messages, and their return to a queue.
- `prepared_work`: what was prepared, and nobody has decided yet.
"""
