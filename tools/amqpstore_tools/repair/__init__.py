"""`amqpstore repair`: a plan for a damaged store, which can be carried out and undone.

- `facts`, `evidence`, `losses`: what is sound, whatever the catalog says of it, and where the log
  has gaps.
- `truth`, `homes`, `names`: what every queue holds, in which segment, and under which name.
- `layout`, `plan`, `fixes`: what becomes of every file, as a plan. Nothing is changed so far.
- `build`, `apply`, `journal`: new files are built beside the store, a check looks at the result,
  and only then files change places.
- `undo`: puts everything back.
- `listing`, `ranges`: digests of files, and sets of numbers.
- `report`, `errors`: what is shown, and why a repair is refused.
"""
