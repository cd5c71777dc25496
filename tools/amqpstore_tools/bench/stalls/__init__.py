"""How long one client waits while another makes the broker work: `amqpstore bench stalls`.

- `settings`: the options, checked; `run`: one disturbance after the other, each beside a quiet
  client (`bench.interference`).
- `disturbance`, `disturbances`, `crowds`, `settling`, `branches`: the work of the other client;
  `cases`: all of it, by name.
- `report`: the result.
"""
