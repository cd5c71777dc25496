"""The verbs of the `amqpstore` command: one module each, named after it."""
