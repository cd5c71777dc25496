"""The broker core: virtual hosts, exchanges, queues, consumers, channels.

Plain synchronous calls on top of the store, with time and chance passed in (`context`). Nothing
here knows which protocol a message came through: a front door talks to `Broker`, `VirtualHost` and
`Channel`, and is told of deliveries, returns and confirms through an `Outlet`. The properties of a
message are kept as AMQP 0-9-1 encodes them, whatever door it came through.

The rooms. Each imports only those before it; a test holds their order:

- `messages`: what the broker reads of a message.
- `exchanges`: one type a module, and their bindings.
- `queues`: what they take in, who gets it, and what leaves them; `routing`: over exchanges to them.
- `transactions`: what moves between queues, all at once or not at all.
- `channels`: what one client publishes, gets, acks and commits.

Below them:

- `errors`, `faults`: what the broker refuses, and errors of its own.
- `names`, `patterns`, `policy`, `permissions`: rules for names, and rights by name.
- `settings`: of a queue; `timers`: what is due when; `context`: what all virtual hosts share.

And above them:

- `vhost`, `broker`: a name space of all this, and all virtual hosts.
- `rows`, `stored`: definitions in the catalog, and the check of what is found there.
"""
