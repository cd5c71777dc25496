"""How long one client waits while another makes the broker work: `amqpstore bench stalls`.

- `settings`: the options, checked; `run`: one disturbance after the other.
- `quiet`: the client that waits; `cases`: the work of the other one, which is in `disturbance`,
  `disturbances`, `crowds` and `settling`; `dialogue`: sends that work in as few writes as possible.
- `report`: the result.
"""
