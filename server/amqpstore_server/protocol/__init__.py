"""AMQP 0-9-1 on the wire: encodes and decodes methods and contents. No sockets, no clock, no store.

- `spec`: the numbers of the specification; `states`: the state machines of a
  connection and of a channel.
- `bounds`: what one table may hold, from wherever it comes.
- `primitives`, `field_table`, `layout`, `methods`, `content`: integers and strings, tables,
  arguments, methods, and content headers; `shapes`: what headers have in common; `headers`,
  `targets`: the headers of one connection, and what its publishes are addressed to, each decoded
  once.
- `frames`: frames to send; `handshake`, `receiver`: frames received, before and after a connection
  is open; `events`: what a receiver returns.
- `whole_publishes`, `acks`: the ways of a receiver over many frames at once; `contents`,
  `partial_body`: contents that are not complete, and a body that arrives in pieces.
- `errors`: errors of a peer, one class for each reply code.
"""
