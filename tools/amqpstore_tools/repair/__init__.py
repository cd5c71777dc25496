"""`amqpstore repair`: a plan for a damaged store, which can be carried out and undone.

What a check finds (`check`) decides whether there is anything to do. Then everything that is
sound is read (`facts`), and from it follows what every queue holds (`truth`) and what becomes of
every file (`layout`). A plan says so (`plan`); nothing is changed yet. To carry it out, all new
files are built beside the store (`build`), a check looks at what the store would be, and only then
files change places (`apply`, `journal`). `undo` puts everything back.
"""
