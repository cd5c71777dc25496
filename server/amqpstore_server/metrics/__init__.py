"""Metrics in Prometheus' text format, with RabbitMQ's names where the thing is the same.

- `source`: what they are collected from.
- `families`: one metric of each kind; `rabbitmq`: those that RabbitMQ has, too; `store`: those of
  the store; `replicas`: those of replication; `process`: those that a follower has, too.
- `whole`: all of these, of one moment's sums over the channels.
- `objects`: metrics of single queues, exchanges, connections and channels, up to a limit.
- `exposition`: all of them as text, in steps.
- `health`: whether the broker lives, and whether it is ready for clients.
"""
