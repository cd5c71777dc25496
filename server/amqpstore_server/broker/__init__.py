"""The broker without a protocol: virtual hosts, exchanges, queues, consumers, channels.

Plain synchronous calls on top of the store, with time and randomness passed in (`context`). Nothing
here knows which protocol a message came through: a front door talks to `Broker`, `VirtualHost` and
`Channel`, and gets deliveries, returns and confirms through an `Outlet`. The properties of a
message are kept as AMQP 0-9-1 encodes them, whatever protocol it arrived by.

The rooms. Each imports only those before it; a test holds their order:

- `messages`: envelopes and death headers.
- `exchanges`: one module per type, and their bindings.
- `queues`: arrival, dispatch and removal of messages; `routing`: from exchanges to queues;
  `publish_rights`: who may publish what; `explaining`: why a message would go there.
- `transactions`: moves between queues, all at once or not at all.
- `channels`: publish, get, ack and commit for one client.

Below them:

- `errors`, `faults`: refused requests, and internal errors; `audit`: the audit log; `log_limit`:
  how many lines anybody can cause; `events`: what happens, for the log and the event exchange.
- `names`, `patterns`, `policy`, `permissions`: rules for names, and permissions by name; `scopes`:
  permissions by token.
- `quotas`: how many connections, channels and queues users and virtual hosts may have.
- `settings`: of a queue; `accepted`: which arguments, policy keys and limits act, are taken with a
  note, or are refused; `timers`: due times; `ack_timeouts`: overdue acks; `late_acks`: what
  is unacked of deleted queues; `counters`: of messages; `departures`: how messages have left
  queues, and why; `limits`: of memory and of work done in one go; `steps`: work on very many
  things; `weak_references`: of parts to their whole; `publish_column`: the publishes of one round
  of reads, placed together; `context`: what all virtual hosts share.

And above them:

- `vhost`, `broker`: one virtual host, and all of them; `predeclared`: the exchanges of each;
  `owned_queues`: those that go with a connection, or with their last consumer.
- `deletion`: what goes together; `removals`: what is left of deleted queues and exchanges.
- `policy_settings`: what queues and exchanges get from policies; `byte_limits`: limits of queues
  whose bytes are not counted yet.
- `rows`, `stored`: definitions in the catalog, and the check of what is found there.
"""
