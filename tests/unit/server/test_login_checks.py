"""The line in front of the password checks."""

import pytest
import trio
import trio.testing

from amqpstore_server.logins.login_checks import MAX_CHECKS, LoginChecks


class Checks:
    """Checks that go on until `end`; `begun` has the users that had a turn."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self._line = LoginChecks()
        self._ends = trio.Semaphore(0)

    async def check(self, host: str, user: str) -> None:
        await self.check_as(host, user, user)

    async def check_as(self, host: str, user: str, name: str) -> None:
        async with self._line.turn(host, user):
            self.begun.append(name)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await self._ends.acquire()
            self.at_once -= 1

    async def end(self, count: int) -> None:
        for _ in range(count):
            self._ends.release()
            await trio.testing.wait_all_tasks_blocked()


def test_no_more_than_some_are_checked_at_a_time() -> None:
    async def main() -> None:
        checks = Checks()
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(checks.check, "a", f"user {number}")
            await trio.testing.wait_all_tasks_blocked()
            await checks.end(10)
        assert checks.most_at_once == MAX_CHECKS
        assert len(checks.begun) == 10

    trio.run(main)


def test_many_logins_of_one_user_do_not_hold_up_another() -> None:
    async def main() -> None:
        checks = Checks()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(checks.check, "a", "attacked")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(checks.check, "a", "other")
            await trio.testing.wait_all_tasks_blocked()
            await checks.end(2)
            assert "other" in checks.begun
            await checks.end(49)

    trio.run(main)


def test_who_leaves_the_line_is_not_checked_and_the_others_are() -> None:
    async def main() -> None:
        checks = Checks()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as leaving:
                for _ in range(MAX_CHECKS):
                    nursery.start_soon(checks.check, "a", "first")
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(5):
                    leaving.start_soon(checks.check, "a", "left")
                await trio.testing.wait_all_tasks_blocked()
                leaving.cancel_scope.cancel()
            nursery.start_soon(checks.check, "a", "stays")
            await trio.testing.wait_all_tasks_blocked()
            await checks.end(MAX_CHECKS + 1)
        assert checks.begun == ["first"] * MAX_CHECKS + ["stays"]

    trio.run(main)


def test_a_turn_that_comes_as_one_leaves_goes_to_the_next() -> None:
    async def main() -> None:
        checks = Checks()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as leaving:
                for _ in range(MAX_CHECKS):
                    nursery.start_soon(checks.check, "a", "first")
                await trio.testing.wait_all_tasks_blocked()
                leaving.start_soon(checks.check, "a", "left")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(checks.check, "a", "next")
                await trio.testing.wait_all_tasks_blocked()
                checks._ends.release()
                leaving.cancel_scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            await checks.end(MAX_CHECKS)
        assert checks.begun[-1] == "next"

    trio.run(main)


def test_a_login_behind_many_of_the_same_user_does_not_wait_for_all_of_them() -> None:
    async def main() -> None:
        checks = LoginChecks()
        begun = []
        end = trio.Semaphore(0)

        async def check(number: int) -> None:
            async with checks.turn("a", "attacked"):
                begun.append(number)
                await end.acquire()

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(check, number)
                await trio.testing.wait_all_tasks_blocked()
            for _ in range(10):
                end.release()
                await trio.testing.wait_all_tasks_blocked()
        assert begun == [0, 1, 9, 2, 8, 3, 7, 4, 6, 5]

    trio.run(main)


def test_a_login_behind_those_of_many_peers_does_not_wait_for_all_of_them() -> None:
    """Each line serves its newest and its oldest by turns, whatever the number of peers."""

    async def main(hosts: int) -> None:
        checks = Checks()
        async with trio.open_nursery() as nursery:
            for number in range(10 * hosts):
                nursery.start_soon(checks.check, f"{number % hosts}", "wrong")
            await trio.testing.wait_all_tasks_blocked()
            # It asks for a turn as the others do, and has it as `right` here.
            nursery.start_soon(checks.check_as, "0", "wrong", "right")
            await trio.testing.wait_all_tasks_blocked()
            await checks.end(2 * hosts)
            assert "right" in checks.begun
            await checks.end(8 * hosts + 1)

    for hosts in range(1, 9):
        trio.run(main, hosts)


@pytest.mark.parametrize("is_of_other_peers", [False, True])
def test_a_login_behind_those_of_many_users_does_not_wait_for_all_of_them(
    is_of_other_peers: bool,
) -> None:
    """Each is of another user, of the same peer or of another one."""

    async def main() -> None:
        checks = Checks()
        async with trio.open_nursery() as nursery:
            for number in range(40):
                host = f"{number}" if is_of_other_peers else "a"
                nursery.start_soon(checks.check, host, f"wrong {number}")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(checks.check, "a", "right")
            await trio.testing.wait_all_tasks_blocked()
            await checks.end(2)
            assert "right" in checks.begun
            await checks.end(39)

    trio.run(main)


def test_a_peer_that_goes_on_with_new_users_leaves_others_every_other_turn() -> None:
    async def main() -> None:
        checks = Checks()
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(checks.check, "a", f"wrong {number}")
                nursery.start_soon(checks.check, "b", f"right {number}")
            for number in range(10, 30):
                nursery.start_soon(checks.check, "a", f"wrong {number}")
                await trio.testing.wait_all_tasks_blocked()
                await checks.end(1)
            assert sum(name.startswith("right") for name in checks.begun) == 10
            await checks.end(20)

    trio.run(main)
