"""The `amqpstore` command."""
