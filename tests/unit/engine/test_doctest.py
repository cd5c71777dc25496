"""The example in the package's docstring runs, and says what it says."""

import doctest

import amqpstore


def test_the_example_of_the_package_runs() -> None:
    failed, tried = doctest.testmod(amqpstore)
    assert failed == 0
    assert tried >= 4
