"""AMQP 0-9-1 on the wire: encodes and decodes methods and contents. No sockets, no clock, no store.

- `spec`: the numbers of the specification; `states`: the state machines of a
  connection and of a channel.
- `bounds`: what one table may hold, from wherever it comes.
- `primitives`, `field_table`, `layout`, `methods`, `content`: integers and strings, tables,
  arguments, methods, and content headers; `shapes`: what headers have in common; `targets`: what
  publishes are addressed to.
- `frames`: frames to send; `handshake`, `receiver`: frames received, before and after a connection
  is open; `events`: what a receiver returns; `partial_body`: a body that arrives in pieces.
- `errors`: errors of a peer, one class for each reply code.
"""
