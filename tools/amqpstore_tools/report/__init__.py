"""`amqpstore report`: a store as one page with charts.

- `gathering`: plans what is counted, and has it counted on Spark, segment by segment.
- `tally`: the counts of a task.
- `charts`, `page`: the charts, and the page.
"""
