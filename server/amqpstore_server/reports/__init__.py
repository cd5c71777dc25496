"""Reports on a data directory, made afterwards: starts, drills, and the trails of messages.

- `reports`: the files in `reports/`; `recovery_reports`: what a start found after a crash.
- `message_trail`: where a message came from and what became of it, for all who show it.
"""
