"""`amqpstore report`: a store as one page with pictures.

- `gathering`: plans what is counted, and has it counted on Spark, segment by segment.
- `tally`: what a task counts.
- `charts`, `page`: the pictures, and the page.
"""
