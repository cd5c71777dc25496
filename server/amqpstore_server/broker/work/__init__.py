"""The work that all virtual hosts share: the context, and work that is done later or in steps.

- `context`: what they share; `limits`: of memory and of work done in one go; `events`: what
  happens, for the audit log and the event exchange.
- `deferred_publishes`: the publishes of one round of reads, put in their queues together.
- `timers`: due times; `ack_timeouts`: overdue acks; `late_acks`: unacked messages of deleted
  queues; `steps`: work on very many things.
"""
