"""Benchmarks for the developers of the broker: `python -m tests.bench`.

They stand on the load generator of `amqpstore bench`, and as that one they run against any broker.

- `command`: the command line.
- `interference`: what one client has while another is at work; on it stand
- `stalls`: how long a quiet client waits;
- `attacks`: what others have while one client attacks the broker.
- `forked`: a process of these clients, at the other end of a pipe.
- `store`: the storage engine alone.
"""
