"""Shared by the connections of all protocols. Plain synchronous calls, without sockets or clock.

- `connection`: the connection itself, for the loop and for what is shown of it.
- `login`, `authorization`: what a client says who it is, and what it may do once that was checked.
- `limits`: how much one client may use; `alarm_state`: whether it has to wait with what it
  publishes.
- `heartbeat`, `deadline`: by when a client has to have shown that it is alive.
- `outbox`: what waits to be sent to it; `client_log`: its log.
"""
