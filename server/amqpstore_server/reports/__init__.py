"""What is told of a data directory afterwards: starts, drills, and the trails of messages.

- `reports`: the files in `reports/`; `recovery_reports`: what a start found after a crash.
- `message_trail`: where a message came from and what became of it, for all who show it.
"""
