"""`amqpstore repair`: a plan for a damaged store, which can be carried out and undone.

- `files`, `facts`: the files of the store under whatever name, and what is sound in them, whatever
  the catalog says of it; `salvage`: what is left of a damaged catalog.
- `evidence`, `losses`: what accounts say, and where the log has gaps.
- `truth`, `homes`, `names`: what every queue holds, in which segment, and under which name.
- `layout`, `plan`, `fixes`: what happens to every file, as a plan. Nothing is changed so far.
- `build`, `apply`, `journal`: new files are built beside the store, the result is checked, and only
  then files are replaced.
- `exporting`, `imaging`, `remaining`: what a repair would keep, for an export, and for whatever
  else shows the content of a store.
- `undo`: restores the state before the repair.
- `listing`, `ranges`: digests of files, and sets of numbers.
- `report`, `errors`: the output, and why a repair is refused.
"""
