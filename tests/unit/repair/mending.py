"""Tools of the tests of repairs."""

from amqpstore_tools.offline.locks import shared_lock
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.journal import Repair
from amqpstore_tools.repair.plan import RepairPlan, make_plan


def plan_of(directory: str) -> RepairPlan:
    """A plan for a store, as the command makes it."""
    with shared_lock(directory):
        return make_plan(directory, lambda *_: None).plan


def mend(directory: str) -> tuple[RepairPlan, Repair | None]:
    """Plan and apply."""
    plan = plan_of(directory)
    return plan, apply_plan(directory, plan)
