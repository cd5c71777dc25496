"""Tests of the columns of a list that a browser shows."""

import re

import pytest

from amqpstore_server.management.pages.choosing import ColumnChoice, cookie_of
from amqpstore_server.management.pages.columns import LISTS, NAME
from amqpstore_server.statistics.sampler import CHANNEL_FIELDS, EXCHANGE, QUEUE_FIELDS

COUNTED = {
    "queues": {*QUEUE_FIELDS, "deliver_get"},
    "channels": {*CHANNEL_FIELDS, "deliver_get"},
    "exchanges": {*EXCHANGE},
    "connections": set[str](),
}


def keys(choice: ColumnChoice) -> list[str]:
    return [column.key for column in choice.shown]


@pytest.mark.parametrize("name", LISTS)
def test_a_choice_comes_back_in_the_order_of_the_list(name: str) -> None:
    usual = ColumnChoice.of(name, {})
    assert usual.is_usual
    last, first = LISTS[name][-1].key, LISTS[name][1].key
    chosen = ColumnChoice(name, {last, first})
    kept = ColumnChoice.of(name, {cookie_of(name): chosen.cookie})
    assert keys(kept) == [one.key for one in LISTS[name] if one.key in (first, last, NAME)]
    assert not kept.is_usual
    # A column of another list cannot be chosen for this one.
    assert keys(ColumnChoice.of(name, {cookie_of("other"): chosen.cookie})) == keys(usual)


@pytest.mark.parametrize("name", LISTS)
def test_names_are_shown_whatever_is_chosen(name: str) -> None:
    for cookie in ("", NAME, "nothing.<img>.name", ".", ","):
        assert keys(ColumnChoice.of(name, {cookie_of(name): cookie})) == [NAME]


@pytest.mark.parametrize("name", LISTS)
def test_a_phone_has_fewer_columns_until_they_are_chosen(name: str) -> None:
    usual = ColumnChoice.of(name, {})
    wide = [one for one in usual.shown if "optional" in usual.classes(one)]
    assert wide
    assert not any(usual.has_on_a_phone(one.key) for one in wide)
    chosen = ColumnChoice(name, {one.key for one in wide})
    assert all(chosen.has_on_a_phone(one.key) for one in wide)
    assert not any("optional" in chosen.classes(one) for one in chosen.shown)


@pytest.mark.parametrize("name", LISTS)
def test_columns_have_names_that_a_cookie_may_have_and_rates_that_are_counted(name: str) -> None:
    columns = LISTS[name]
    assert len({one.key for one in columns}) == len({one.label for one in columns}) == len(columns)
    for column in columns:
        assert re.fullmatch("[a-z_]+", column.key)
        if rate := re.fullmatch(r"message_stats\.(\w+)_details\.rate", column.sort):
            assert rate[1] in COUNTED[name]
    rows = [column.cell({}) for column in columns]
    assert all(cell in ("", "-", "any", "none", "plain") or "<" in cell for cell in rows)
