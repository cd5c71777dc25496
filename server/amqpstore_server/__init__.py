"""The AMQP broker on top of the store: codec, broker core, and the trio edge."""
