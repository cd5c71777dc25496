"""AMQP 0-9-1 as a front door: methods become calls on the broker, and its answers frames.

Plain synchronous calls, without sockets or clock. What the broker does not know (frames, reply
codes, delivery frames, the handshake) is here; what a queue or an exchange does is not.

- `connection`: one connection, without its socket; `opening`: its handshake; `negotiation`,
  `product`: what both ends agree on in it; `renewal`: of its login.
- `input`: the events of its reads, and how many are handled at once; `held_publishes`: what it
  publishes during an alarm.
- `telling`: the events of connections.
- `session`: the channels of an open connection; `context`: what they share.
- `channel`, `topology`, `envelopes`, `distributed`: one channel, and the methods that declare,
  publish, and work in distributed transactions; `arguments`: field tables from clients.
- `deliveries`: messages as frames.
- `refusals`: how errors of the broker become reply codes, and these close methods.
"""
