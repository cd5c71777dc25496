"""The event loop: reads from all clients, the work that follows, and the writes.

- `sockets`: all clients' sockets in one selector; `socket_connection`: the socket of one client;
  `tls`: TLS on it; `read_size`: how much is read from one at once.
- `turn`: one round of reads, with what follows from it; `share`: how costly work shares the time
  with the rest; `committer`: batches are written and synced.
- `switching`, `garbage`: how soon the loop gets the interpreter back, and how short the pauses for
  Python's garbage are; `holds`: how long the longest rounds were.
- `alarms`: publishers wait while memory or the disk is short; `trimming`: memory is given back.
"""
