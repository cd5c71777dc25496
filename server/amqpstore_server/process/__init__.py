"""The broker as a process of an operating system.

- `signals`: which are handled, from the first moment on; `stopping`: how connections end.
- `service_manager`: what systemd is told.
- `ticking`: heartbeats and timeouts of all connections, also after the process stood still.
"""
