"""Finds what every queue holds, stage by stage."""

from __future__ import annotations

from amqpstore.catalog import tables
from amqpstore_tools.repair.facts import Facts
from amqpstore_tools.repair.homes import Homes
from amqpstore_tools.repair.truth import holes, totals
from amqpstore_tools.repair.truth.given_up import give_up, put_back
from amqpstore_tools.repair.truth.indexed import read_index
from amqpstore_tools.repair.truth.logged import read_log
from amqpstore_tools.repair.truth.naming import name_queues
from amqpstore_tools.repair.truth.trust import Trust
from amqpstore_tools.repair.truth.values import Placements, Truth


def find_truth(facts: Facts) -> Truth:
    """Find what the store holds. Raises: OSError."""
    trust = Trust(facts)
    named = name_queues(facts, trust)
    truth = Truth(*named[:3], _homes(facts), named.next_queue_id)
    placements = Placements(named.queues, trust.accounted)
    indexed = read_index(facts, trust, placements)
    holes.fill_from_log(trust, placements, indexed)
    truth.notes += holes.fill_by_order(trust, placements, indexed)
    short = holes.short_of(trust, placements, indexed)
    absent = holes.count_absent(trust, placements, indexed)
    put_back(trust, placements, truth.homes)
    behind = read_log(trust, placements)
    totals.number(facts, trust, placements, truth)
    totals.drop_lost(truth)
    totals.count_unsure(trust, placements, truth, behind)
    totals.mend_prepared(truth)
    is_index_whole = trust.is_index_whole and indexed.is_whole
    totals.collect_orphans(facts, trust, placements, truth, short, is_index_whole=is_index_whole)
    totals.count_absent(truth, absent)
    give_up(trust, truth)
    totals.say_what_is_uncertain(facts, trust, truth)
    return truth


def _homes(facts: Facts) -> Homes:
    """Return the segments of all messages: sound ones with a row come first."""
    rowed = tables.SEGMENTS.read_keys(facts.rows.__getitem__) if facts.rows is not None else set()
    preferred = sorted(
        facts.segments,
        key=lambda one: (not one.is_sound, not one.is_home, one.number not in rowed, one.number),
    )
    return Homes(preferred)
