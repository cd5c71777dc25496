"""How long one client waits while another makes the broker work: `amqpstore bench stalls`.

- `settings`: the options, checked; `run`: one disturbance after the other.
- `quiet`: the client that waits; `disturbance`, `disturbances`, `crowds`, `settling`: the work of
  the other one; `cases`: all of it, by name; `dialogue`: sends it in as few writes as possible.
- `report`: the result.
"""
