"""Service that other clients get while one client attacks: `python -m tests.bench attacks`.

- `settings`: the options, checked; `run`: one attack after the other, each by turns with none
  (what it shares with `stalls` is in `interference`).
- `attack`: what all attacks have in common; `strangers`: attacks before a login; `members`: attacks
  of clients that have logged in; `catalog`: all of them by name.
- `attacker`: the process of an attack, and one that only uses as much processor time.
- `others`: the clients that are to be served meanwhile.
- `report`: the result.
"""
