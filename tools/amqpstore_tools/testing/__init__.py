"""For tests of AMQP applications: the broker in the test's own process.

`plugin` is what pytest loads, and `broker` what its fixtures give. Nothing of the broker is
imported before a fixture is used.
"""
