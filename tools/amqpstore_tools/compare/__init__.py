"""Brokers side by side: `amqpstore bench compare`.

- `settings`: the options, checked; `workloads`: the named workloads, and the figures read from
  each.
- `run`: all workloads on all brokers by turns; `summary`: medians and ratios of the rounds.
- `page`, `report`: the page with charts, the table and JSON.
"""
