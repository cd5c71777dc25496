"""Counters, logs and alarms: the broker's record of its own work.

- `counters`: messages in and out; `departures`: how messages have left queues, and why.
- `audit`: the audit log; `log_limit`: how many lines anybody can cause.
- `faults`: internal errors, and how they are contained.
"""
