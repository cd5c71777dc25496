"""`amqpstore inspect`: what is in a store, from the whole of it down to one record.

`overview`, `vhost`, `segment`, `queue`, `message` and `transaction` each gather facts, as JSON has
them, and print them for people; `follow` shows the log as it grows.
"""
