"""`amqpstore report`: a store as one page with charts.

- `gathering`: plans what is counted, and has it counted on Spark, segment by segment.
- `tally`: the counts of a task.
- `charts`, `document`: charts, and the frame of a page, for other tools as well; `page`: the page.
"""
