"""Logins: who may log in, and how.

- `logins`: by password, certificate or token; `users`: users and their tags.
- `login_checks`: the queue for password checks; `password_hashes`: the hashes in definitions files.
- `certificates`: the server's certificates, and the settings of TLS.
- `tokens`, `token_keys`: OAuth 2.
- `peers`: which addresses count as one.
"""
