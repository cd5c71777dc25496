"""A small blocking AMQP 0-9-1 client, for load generators, drills and transfers.

- `wire`: methods as octets; `frames`: reading frame by frame; `connection`: one connection with one
  channel; `confirms`: which publishes are confirmed; `errors`: what can go wrong.
"""
