"""The AMQP broker on top of the store: codec, broker, and the trio edge.

- `app`: the program: what is started, in which order, and how it stops; `logs`: its log.
- `config`: every key of the configuration; `config_keys`: what a key is; `config_sources`: the
  file, the environment and the options it comes from; `config_options`: those options;
  `config_cluster`: the keys of a cluster; `config_checks`: what values are checked with;
  `config_effects`: which keys act on nothing; `config_values`: what follows from them;
  `small_files`: how files that an operator wrote are read.
- `signals`: which of them are handled, from the first moment on; `reloading`: what SIGHUP changes
  in a running broker; `stopping`: what SIGTERM does with clients; `service_manager`: what systemd
  is told of both.
- `listening`, `management_sockets`: the sockets on which clients arrive; `proxied_listening`: where
  proxies pass them on; `proxy_protocol`: with which headers; `proxied_sockets`: what such clients
  are accepted from; `admission`: how fast clients are admitted, and in which order; `doors`: how
  many may connect; `peers`: which addresses are one; `socket_connection`: one client's socket;
  `tls`: TLS on it; `certificates`: those of the server.
- `sockets`: all clients' sockets in one set, read together; `read_size`: how much is read at once;
  `turn`: the work to do after a round of reads; `share`: how much of the time costly work has
  beside others; `switching`: how soon a turn gets the interpreter back; `holds`: how long its
  longest turns were; `garbage`: Python's garbage is collected in short pauses; `committer`: has
  batches written and synced.
- `ticking`: heartbeats and timeouts of all connections; `alarms`: publishers wait while memory is
  short, or the disk is nearly full; `trimming`: memory is given back after many clients have left.
- `protocol`: bytes to methods and back; `amqp`: methods to calls on the broker; `broker`: virtual
  hosts, exchanges and queues.
- `users`, `logins`: who may log in, and how; `first_users`: the users of a new store;
  `login_checks`: the queue for password checks; `password_hashes`: the forms of hashes in
  definitions; `tokens`, `token_keys`: OAuth 2.
- `statistics`: what the broker has counted, as totals, rates and samples over time; `metrics`: the
  same for Prometheus.
- `administration`: what operators do with users, virtual hosts, permissions and policies;
  `admin_socket`: their door in the data directory; `management`: their door over HTTP.
- `cluster`: what a replica decides; `etcd`: what it asks of etcd; `replication`: what carries out
  the rest of it, on sockets and disks.
- `serving_term`: for how long a broker serves, and what it waits for; `replication_figures`: what a
  leader's metrics tell of its followers.
- `message_trail`: where a message came from and what became of it, for all who show it.
- `definitions`, `importing`: RabbitMQ's definitions file, and how it is applied.
- `recovery_reports`: what a start found after a crash; `reports`: the files of these, and of
  drills; `plugins`: what an exchange type of another package may import.
"""
