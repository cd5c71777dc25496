"""Waits of one client while another keeps the broker busy: `python -m tests.bench stalls`.

- `settings`: the options, checked; `run`: one disturbance after the other, each beside a quiet
  client (`interference`).
- `disturbance`, `disturbances`, `crowds`, `settling`, `branches`: the work of the other client;
  `cases`: all of it, by name.
- `report`: the result.
"""
