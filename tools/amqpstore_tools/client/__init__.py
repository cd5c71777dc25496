"""A small blocking AMQP 0-9-1 client, for load generators, drills and transfers.

- `wire`: encodes methods; `frames`: reads frame by frame; `connection`: one connection with one
  channel; `confirms`: which publishes are confirmed; `errors`: errors with messages for people.
"""
