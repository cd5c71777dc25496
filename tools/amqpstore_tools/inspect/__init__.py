"""`amqpstore inspect`: what is in a store, from the whole of it down to one record.

- `overview`, `page`: the whole store, gathered and printed.
- `vhost`, `queue`, `segment`, `message`, `transaction`: one thing in it, gathered as JSON has it,
  and printed.
- `follow`: the log as it grows; `names`: queues by their ids.
"""
