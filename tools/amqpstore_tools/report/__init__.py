"""`amqpstore report`: a store as one page with pictures.

`gathering` plans what is counted and has it counted, segment by segment, on Spark; `tally` is what
a task counts; `charts` draws, `page` puts it together.
"""
