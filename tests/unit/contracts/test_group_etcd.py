"""Questions that a proof asks a stand-in have no answer that is inherited by accident."""

import pytest

from tests.interop.test_etcd_elections import RealEtcd
from tests.simulated_group.etcd import GroupEtcd
from tests.simulated_group.invariants import Invariants
from tests.simulated_group.machine import Witness


@pytest.mark.parametrize("interface", [GroupEtcd, Witness])
def test_an_interface_answers_nothing_itself(interface: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        interface()


def test_a_real_etcd_answers_what_the_rules_ask_itself() -> None:
    """The rules once saw no violation, as they asked the list of the model instead."""
    for name in GroupEtcd.__abstractmethods__:
        assert name in vars(RealEtcd), name
    for name in Witness.__abstractmethods__:
        assert name in vars(Invariants), name
