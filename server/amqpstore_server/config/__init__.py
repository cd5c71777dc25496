"""The configuration: every key, where its value comes from, and what it may be.

- `config`: all keys, declared once; `cluster`: those of a group's member; `keys`: what a key is.
- `sources`: the file, the environment and the command line; `options`: the options of the last.
- `checks`: what values are checked with; `effects`: which keys act on nothing.
- `small_files`: files that an operator wrote, read whole.
"""
