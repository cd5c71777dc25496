"""AMQP 0-9-1 as bytes: methods and contents, to and from. No sockets, no clock, no store."""
