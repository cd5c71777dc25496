"""The broker core: virtual hosts, exchanges, queues, consumers, channels.

Plain synchronous calls on top of the store, with time and chance passed in (`core`). Nothing here
knows which protocol a message came through: a front door talks to `Broker`, `VirtualHost` and
`Channel`, and is told of deliveries, returns and confirms through an `Outlet`. The properties of a
message are kept as AMQP 0-9-1 encodes them, whatever door it came through.

The rooms, along the way of a message:

- `label`, what the broker reads of it; `routing`, over `exchanges` to queues;
- `publishing`, into queues and the confirms for it; `local_transaction`, what waits for a commit;
  `transaction`, what happens all at once or not at all;
- `queue`, what it takes in and what leaves it, as its `settings` say, with `levels` of priority and
  `timers`; `held`, queues that no client declares;
- `dispatch`, which `consumer` gets what; `channel`, what is unacked; `outlet`, the way out;
- `dead_letter`, where messages go that nobody consumed; `leaving`, those that are read back for it.

Around it: `vhost`, a name space of all this, with `names`, `rows` of the catalog and a look at what
is `stored` there; `policy`; `permissions`; `broker`, all virtual hosts.
"""
