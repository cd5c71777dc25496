"""The meaning of names, patterns, arguments and policies.

- `names`: which names are valid, and which reserved; `patterns`: regular expressions of operators.
- `settings`: the settings of a queue, from its arguments and policies; `policy`: policies.
"""
