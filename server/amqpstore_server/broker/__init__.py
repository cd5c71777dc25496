"""The broker core: virtual hosts, exchanges, queues, consumers, channels.

Plain synchronous calls on top of the store, with time and chance passed in (`core`). Nothing here
knows which protocol a message came through: a front door talks to `Broker`, `VirtualHost` and
`Channel`, and is told of deliveries, returns and confirms through an `Outlet`. The properties of a
message are kept as AMQP 0-9-1 encodes them, whatever door it came through.

Along the way of a message:

- `label`: what the broker reads of a message; `routing`, `exchanges`, `bindings`: the way to
queues.
- `publishing`: into queues, and the confirms for it; `local_transaction`: what waits for a commit;
  `transaction`: what happens all at once or not at all.
- `queue`: what a queue takes in and what leaves it; `settings`: its limits; `levels`: its priority
  levels; `timers`: what is due when; `kinds`: of queues; `exchange_queues`: those that exchanges
  keep messages in.
- `dispatch`, `consumer`: which consumer gets what; `channel`: what is unacked; `outlet`: the way
  out; `waiting`: gets that wait for a message.
- `dead_letter`, `leaving`: where unconsumed messages go, and how their bodies are read back for it.
- `history`, `replay`: copies of consumed messages, and their return to a queue.

Around it:

- `broker`, `vhost`, `core`: all virtual hosts, one of them, and what they share.
- `names`, `patterns`, `policy`, `permissions`: rules for names, and rights by name.
- `rows`, `stored`: definitions in the catalog, and the check of what is found there.
- `branches`, `prepared_work`: distributed transactions, and what a prepared one is to do.
- `errors`, `faults`: what the broker refuses, and errors of its own.
"""
