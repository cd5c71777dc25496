"""The engine's own benchmark: `amqpstore bench store WORKLOAD`, without sockets.

- `settings`: the options of each workload; `run`: the jobs that a workload consists of.
- `job`, `process`, `child`: a job in a fresh interpreter, so that its memory and its start time are
  its own.
- `jobs`: the loops that are measured; `commits`: how batches become durable; `watch`: disk, memory
  and background work as seen from outside.
- `report`: the result.

Only `child` and what it imports use the engine.
"""
