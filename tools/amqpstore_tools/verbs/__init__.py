"""The verbs of the `amqpstore` command: one module each, named after it.

- `serve`, `bench`, `drill`: run, measure and torture the broker or the engine.
- `inspect`, `stats`, `check`, `repair`, `compact`, `upgrade`: look at a data directory, and keep it
  sound.
- `copy`, `restore`, `export`, `import_`, `publish`: copies of stores and of messages.
- `archive`, `replay`, `as_of`, `report`: jobs on Spark.
"""
