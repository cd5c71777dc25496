"""A client that has closed its socket is not waited for, and few others wait for its end."""

import math

import pytest
import trio
import trio.testing

from tests.one_client import one_client, still_clock, wait_for_reads


async def disconnect(*, is_full: bool) -> tuple[bool, bool]:
    """Return whether other tasks are to run at once after the round that finds a client gone, and
    whether nothing is left of it once they have.
    """
    async with one_client() as (app, client):
        if is_full:
            app._doors.limit(1, 0)
        with still_clock():
            app.sockets._others_run_at = math.inf
            client.close()
            wait_for_reads(app, 1)
            app.sockets._look(0)
            app._rounds.run_once(app.committer, trio.current_time())
            is_at_once = app.sockets._others_run_at == 0.0
        await trio.testing.wait_all_tasks_blocked()
        return is_at_once, not app.connections and not app._doors.visitors


@pytest.mark.parametrize("is_full", [False, True])
def test_who_leaves_ends_with_the_next_turn_of_other_tasks(*, is_full: bool) -> None:
    """The next turn comes within milliseconds anyway: one for each client by itself takes longer
    than its login. But where all places are taken, another client may wait for this one.
    """
    assert trio.run(lambda: disconnect(is_full=is_full)) == (is_full, True)
