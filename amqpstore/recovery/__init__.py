"""The work of a start: it opens a directory, and reconstructs the state from its files.

- `opening`: locks, creates and opens; `recovery`: reconstructs; `recovered`: the result, as a
  report and as values.
- `next_term`: where the log of a new leader begins.
"""
