"""AMQP 0-9-1 as a front door: methods become calls on the broker, and its answers frames.

Plain synchronous calls, without sockets or clock. What the broker does not know (frames, reply
codes, delivery frames, the handshake) is here; what a queue or an exchange does is not.
"""
