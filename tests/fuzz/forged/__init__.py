"""Files with wrong contents under right checksums, and everything that reads them.

An attacker who can write to a store's files knows its id, so no checksum keeps them from saying
anything; and a fault of a writer has right checksums as well.

- `forger`: changes a value.
- `stores`: makes the stores, and puts other values into their files.
- `trying`: runs the broker and every tool on them; `__main__` does so in processes of their own,
  with little memory and little time.
"""
