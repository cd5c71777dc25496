"""The broker without a protocol: virtual hosts, exchanges, queues, consumers, channels.

Plain synchronous calls on top of the store, with time and randomness passed in (`work.services`).
Nothing here knows which protocol a message came through: a front door talks to `Broker`,
`VirtualHost` and `Channel`, and gets deliveries, returns and confirms through an `Outlet`. The
properties of a message are kept as AMQP 0-9-1 encodes them, whatever protocol it arrived by.

The rooms. Each imports only those before it; a test holds their order:

- `errors`: refused requests; `weak_references`: of parts to their whole.
- `monitoring`: counters, departures, faults, the audit log.
- `rules`: names, patterns, settings and policies; `rights`: permissions, scopes and quotas.
- `messages`: envelopes and death headers.
- `exchanges`: one module per type, and their bindings.
- `work`: what all virtual hosts share, and work that is done later or in steps.
- `queues`: arrival, dispatch and removal of messages; `routing`: from exchanges to queues.
- `transactions`: moves between queues, all at once or not at all.
- `channels`: publish, get, ack and commit for one client.
- `definitions`: what is defined, how it is stored, and what goes with it.
- `vhost`, `broker`: one virtual host, and all of them.
"""
