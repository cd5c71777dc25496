"""The AMQP broker on top of the store: codec, broker, and the trio edge.

The rooms. Each imports only those before it; a test holds their order:

- `protocol`: bytes to methods and back, without a socket.
- `cluster`: what a replica decides; `etcd`: what it asks of etcd.
- `logs`: the log for people; `process`: signals, stopping, the service manager, the tick.
- `config`: every key of the configuration, and where its value comes from.
- `broker`: virtual hosts, exchanges and queues; `plugins`: what an exchange type of another package
  may import.
- `clients`: logins, limits, outbox and log of a connection, whatever protocol it speaks.
- `amqp`: methods to calls on the broker.
- `reports`: what starts found and drills proved; trails of messages.
- `logins`: who may log in, and how.
- `administration`: what operators do, and the admin socket; definitions files; the first users.
- `listening`: the sockets on which clients arrive, and how many of them are let in.
- `terms`: for how long a broker serves.
- `loop`: reads from all clients, the work that follows, and the writes.
- `config_values`: what follows from the configuration; `reloading`: what SIGHUP changes.
- `statistics`: what the broker has counted, as totals, rates and samples over time; `metrics`: the
  same for Prometheus.
- `management`: operators' door over HTTP.
- `replication`: what carries out a replica's decisions, on sockets and disks.
- `app`: the program: what is started, in which order, and how it stops.
"""
