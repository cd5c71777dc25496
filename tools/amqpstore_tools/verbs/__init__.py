"""The verbs of the `amqpstore` command: one module each, named after it.

- `serve`, `bench`, `drill`: run, measure and stress the broker or the engine; `config`: the
  configuration that `serve` uses.
- `users`, `vhosts`, `permissions`, `policies`, `definitions`: what operators define, on a running
  broker or a stopped one; `exchanges`: where a message would go there; `messages`: the messages of
  a queue; `connections`: those of clients.
- `cluster`: a group of replicas, its members and who leads.
- `inspect`, `stats`, `check`, `repair`, `compact`, `upgrade`: inspect a data directory, and
  maintain it.
- `copy`, `restore`, `export`, `import_`, `publish`: copies of stores and of messages.
- `archive`, `replay`, `as_of`, `report`: jobs on Spark.
"""
