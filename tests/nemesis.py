"""Faults that happen to a group of real processes: one, or two at a time, each for a while."""

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from tests.cluster_processes import GroupProcesses, MemberProcess
from tests.network_namespaces import HostNetwork, NetworkHost
from tests.slow_links import Pace
from tests.small_disk import fill

HOLDS_S = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0)
LONG_HOLD_S = 20.0
DELAYS_S = (0.02, 0.05, 0.1, 0.2)
"""Each way."""
BANDWIDTHS = (256 << 10, 512 << 10, 1 << 20, 2 << 20)
"""Bytes a second, each way."""
_LEFT_BYTES = (0, 100_000, 3 << 20)

Fault: TypeAlias = Callable[[], AbstractContextManager[None]]


class Nemesis:
    """Faults of a group's members, of its etcd and, where they have hosts and disks of their own,
    of those. Each is a context: the fault is mended at the end of it.
    """

    def __init__(
        self, group: GroupProcesses, seed: int, network: HostNetwork | None = None
    ) -> None:
        self._group = group
        self._random = random.Random(seed)
        self._network = network
        self._leader = group.members[0]
        self._follower = group.members[-1]
        self.ended: list[str] = []
        """The last output of members that ended by themselves."""
        of_members: list[Fault] = [
            self.leader_is_killed,
            self.leader_is_killed_and_started,
            self.leader_stops,
            self.leader_is_paused,
            self.follower_is_killed,
            self.follower_is_paused,
            self.all_are_killed,
        ]
        self.faults: Sequence[Fault] = of_members
        if network is not None:
            self.faults = (
                *of_members,
                self.leader_is_unplugged,
                self.follower_is_unplugged,
                self.leader_is_cut_off,
                self.leader_does_not_reach_a_follower,
                self.follower_does_not_reach_its_leader,
                self.leader_and_follower_are_cut,
                self.leader_is_cut_off_from_etcd,
                self.follower_is_cut_off_from_etcd,
                self.answers_of_etcd_do_not_reach_the_leader,
                self.halves_are_cut,
                self.links_are_slow,
                self.links_are_narrow,
                self.etcd_loses_a_member,
                self.etcd_loses_its_leader,
                self.etcd_is_killed,
                self.etcd_is_paused,
                self.disk_of_leader_is_full,
                self.disk_of_follower_is_full,
            )

    def pair(self) -> tuple[Fault, ...]:
        """Return two faults."""
        return tuple(self._random.sample(self.faults, 2))

    def strike(self, *faults: Fault) -> str:
        """Let faults happen, some time apart, mend them, and return what they were."""
        self._leader = self._group.wait_for_leader()
        others = [one for one in self._group.members if one is not self._leader]
        self._follower = self._random.choice(others)
        hold_s = LONG_HOLD_S if self._random.random() < 0.03 else self._random.choice(HOLDS_S)
        with contextlib.ExitStack() as stack:
            for number, fault in enumerate(faults):
                if number:
                    time.sleep(self._random.uniform(0.0, 1.0))
                stack.enter_context(fault())
            time.sleep(hold_s)
        self.revive()
        return " and ".join(fault.__name__ for fault in faults) + f" for {hold_s} s"

    def revive(self) -> None:
        """Start the members that do not run, as a supervisor does. All others can be reached by
        now.
        """
        for one in self._group.members:
            if not one.is_running:
                if (code := one.exit_code) is not None:
                    self.ended.append(f"exit code {code}: {one.log()[-600:]}")
                one.kill()
                one.start()
        self._group.etcd.start()

    # Members.

    @contextmanager
    def leader_is_killed(self) -> Generator[None]:
        self._leader.kill()
        yield

    @contextmanager
    def leader_is_killed_and_started(self) -> Generator[None]:
        self._leader.kill()
        self._leader.start()
        yield

    @contextmanager
    def leader_stops(self) -> Generator[None]:
        self._leader.signal(signal.SIGTERM)
        yield
        self._leader.kill()

    def leader_is_paused(self) -> AbstractContextManager[None]:
        return _paused(self._leader)

    @contextmanager
    def follower_is_killed(self) -> Generator[None]:
        self._follower.kill()
        yield

    def follower_is_paused(self) -> AbstractContextManager[None]:
        return _paused(self._follower)

    @contextmanager
    def all_are_killed(self) -> Generator[None]:
        for one in self._group.members:
            one.kill()
        yield

    # The network.

    def _host(self, member: MemberProcess) -> NetworkHost:
        assert isinstance(member.host, NetworkHost)
        return member.host

    @property
    def _etcd_hosts(self) -> list[NetworkHost]:
        return [one.host for one in self._group.etcd.members if isinstance(one.host, NetworkHost)]

    @property
    def _other_hosts(self) -> list[NetworkHost]:
        return [self._host(one) for one in self._group.members if one is not self._leader]

    @contextmanager
    def _unplugged(self, host: NetworkHost) -> Generator[None]:
        assert self._network is not None
        self._network.unplug(host)
        yield
        self._network.plug_in(host)

    @contextmanager
    def _cut(
        self, senders: Iterable[NetworkHost], receivers: Sequence[NetworkHost], *, both: bool = True
    ) -> Generator[None]:
        assert self._network is not None
        ways = {(one, other) for one in senders for other in receivers if one is not other}
        ways |= {(other, one) for one, other in ways} if both else set()
        self._network.cut(ways)
        yield
        self._network.mend(ways)

    def leader_is_unplugged(self) -> AbstractContextManager[None]:
        return self._unplugged(self._host(self._leader))

    def follower_is_unplugged(self) -> AbstractContextManager[None]:
        return self._unplugged(self._host(self._follower))

    def leader_is_cut_off(self) -> AbstractContextManager[None]:
        """Cut the leader off from members and etcd; clients still reach it."""
        return self._cut([self._host(self._leader)], [*self._other_hosts, *self._etcd_hosts])

    def leader_does_not_reach_a_follower(self) -> AbstractContextManager[None]:
        return self._cut([self._host(self._leader)], [self._host(self._follower)], both=False)

    def follower_does_not_reach_its_leader(self) -> AbstractContextManager[None]:
        return self._cut([self._host(self._follower)], [self._host(self._leader)], both=False)

    def leader_and_follower_are_cut(self) -> AbstractContextManager[None]:
        return self._cut([self._host(self._leader)], [self._host(self._follower)])

    def leader_is_cut_off_from_etcd(self) -> AbstractContextManager[None]:
        return self._cut([self._host(self._leader)], self._etcd_hosts)

    def follower_is_cut_off_from_etcd(self) -> AbstractContextManager[None]:
        return self._cut([self._host(self._follower)], self._etcd_hosts)

    def answers_of_etcd_do_not_reach_the_leader(self) -> AbstractContextManager[None]:
        return self._cut(self._etcd_hosts, [self._host(self._leader)], both=False)

    def halves_are_cut(self) -> AbstractContextManager[None]:
        """Cut the network in halves; the leader has one member of etcd on its side."""
        lonely, *etcd = self._random.sample(self._etcd_hosts, len(self._etcd_hosts))
        return self._cut([self._host(self._leader), lonely], [*self._other_hosts, *etcd])

    @contextmanager
    def _slow(self, hosts: Sequence[NetworkHost], pace: Pace) -> Generator[None]:
        assert self._network is not None
        ways = list(itertools.permutations(hosts, 2))
        self._network.slow_down(ways, pace)
        yield
        self._network.speed_up(ways, pace)

    def links_are_slow(self) -> AbstractContextManager[None]:
        """Delay what members send each other, and etcd."""
        hosts = [self._host(self._leader), *self._other_hosts, *self._etcd_hosts]
        return self._slow(hosts, Pace(delay_s=self._random.choice(DELAYS_S)))

    def links_are_narrow(self) -> AbstractContextManager[None]:
        """Narrow the links between members."""
        hosts = [self._host(self._leader), *self._other_hosts]
        return self._slow(hosts, Pace(bytes_per_s=self._random.choice(BANDWIDTHS)))

    # etcd.

    @contextmanager
    def etcd_loses_a_member(self) -> Generator[None]:
        member = self._random.choice(self._group.etcd.members)
        member.kill()
        yield

    @contextmanager
    def etcd_loses_its_leader(self) -> Generator[None]:
        with contextlib.suppress(AssertionError):
            self._group.etcd.leader().kill()
        yield

    @contextmanager
    def etcd_is_killed(self) -> Generator[None]:
        self._group.etcd.kill()
        yield

    @contextmanager
    def etcd_is_paused(self) -> Generator[None]:
        for one in self._group.etcd.members:
            one.pause()
        yield
        for one in self._group.etcd.members:
            one.resume()

    # Disks.

    def disk_of_leader_is_full(self) -> AbstractContextManager[None]:
        return self._full(self._leader)

    def disk_of_follower_is_full(self) -> AbstractContextManager[None]:
        return self._full(self._follower)

    @contextmanager
    def _full(self, member: MemberProcess) -> Generator[None]:
        path = os.path.join(os.path.dirname(member.directory), "ballast")
        with contextlib.suppress(OSError):
            fill(path, self._random.choice(_LEFT_BYTES))
        yield
        os.unlink(path)


@contextmanager
def _paused(member: MemberProcess) -> Generator[None]:
    member.signal(signal.SIGSTOP)
    yield
    member.signal(signal.SIGCONT)
