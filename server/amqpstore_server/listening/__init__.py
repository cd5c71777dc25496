"""The sockets on which clients arrive, and how many of them are let in.

- `listening`: the sockets of clients; `management_sockets`: those of the management API.
- `proxied_listening`, `proxied_sockets`: where proxies pass clients on; `proxy_protocol`: the
  headers by which they do.
- `admission`: how fast clients are let in; `doors`: how many may be connected.
"""
