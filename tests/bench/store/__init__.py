"""The engine's own benchmark: `python -m tests.bench store WORKLOAD`, without sockets.

- `settings`: the options of each workload; `run`: the jobs that a workload consists of.
- `job`, `process`, `child`: a job in a new process, so that its memory and start time can be
  measured.
- `jobs`: the loops that are measured; `commits`: makes batches durable; `watch`: observes disk,
  memory and background work from outside.
- `report`: the result.

Only `child` and what it imports use the engine.
"""
