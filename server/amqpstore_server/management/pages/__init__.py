"""The web pages of the management door.

A page shows what the HTTP API answers, and its forms ask the API for changes: both in the same
process, as the user who is logged in. So a page can show and do nothing that the API would refuse.

- `api`: the API, asked by a page.
- `sessions`: who is logged in, by a cookie; `kept_sessions`: those that outlive a restart.
- `formats`: how numbers, times and states are written; `render`: templates; `visible`: marks for
  invisible characters.
- `listings`: a page of a list, and the links to the others; `columns`: what lists can have;
  `choosing`: which of them a browser shows.
- `address`: which page is asked for; `reading`: what each page shows; `provenance`: that of one
  message; `routing`, `storing`: the pictures on two of them.
- `charts`: the figures and samples of a live page.
- `rights`: what the user may do with what a page shows.
- `actions`: forms as requests to the API; `selecting`: one form as many of them, in pieces.
- `site`: the application of all of it.

`templates` are written in Jinja and escape everything; `static` has the style sheet, the script and
two libraries as they were published: htmx (0BSD) and uPlot (MIT).
"""
