"""Streams: the log of a store, and queues and exchanges of a broker."""
