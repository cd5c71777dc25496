"""The broker core: virtual hosts, exchanges, queues, consumers, channels.

Plain synchronous calls on top of the store. Nothing here knows which protocol a message came
through: a front door talks to `Broker`, `VirtualHost` and `Channel`, and is told of deliveries,
returns and confirms through an `Outlet`.
"""
