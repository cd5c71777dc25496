"""`amqpstore inspect`: the content of a store, from an overview down to one record.

- `overview`, `page`: the whole store, gathered and printed; `usage`: what takes its space.
- `vhost`, `queue`, `segment`, `message`, `transaction`: one part of it, gathered for JSON, and
  printed.
- `follow`: the log as it grows; `names`: queues by their ids.
"""
