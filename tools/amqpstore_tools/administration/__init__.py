"""The operations of an operator on a data directory, whether a broker runs on it or not.

- `client`: carries out a request, by the broker that runs, or on the store of one that is stopped.
- `options`: the options that the verbs share; `passwords`: where passwords are read from.
"""
