"""`amqpstore check`: a read-only verification of a store, whether it opens or not.

`check.check` is what all of it comes to. It reads the marker and the catalog (`catalog`), every
record of every segment (`scanning`, `segments`), the log that they make (`history`), every
index file (`index`), and then holds them against each other (`references`). What is wrong becomes a
`findings.Finding`, never an exception. FINDINGS.md has the codes.
"""
