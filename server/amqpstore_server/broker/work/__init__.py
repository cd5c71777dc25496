"""The services that all virtual hosts share, and work that is done later or in steps.

- `services`: what they share; `limits`: of memory and of work done in one go; `events`: what
  happens, for the audit log and the event exchange.
- `agenda`: what is to be done in this round or a later one; `pumping`: works it off; `moves`:
  messages that move between queues, or are dropped; `statistics`: what was counted and measured
  since the start.
- `deferred_publishes`: the publishes of one round of reads, put in their queues together.
- `timers`: due times; `ack_timeouts`: overdue acks; `late_acks`: unacked messages of deleted
  queues; `steps`: work on very many things.
"""
