"""`amqpstore stats`: how large a store is, how old, and how much of it is garbage, as a picture."""
