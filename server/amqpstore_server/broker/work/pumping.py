"""The work of each round: queues hand out, move and drop messages, and one step of the work in the
background is done.
"""

from __future__ import annotations

from amqpstore_server.broker.monitoring.faults import called
from amqpstore_server.broker.work.services import BrokerServices


class Pumping:
    """Does what is on the agenda, as much in one round as the limits allow."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._agenda = services.agenda

    @property
    def has_work(self) -> bool:
        """Whether a queue has been touched since the last `pump`, messages have arrived, or there
        is work in the background.
        """
        return any(self._agenda.lines)

    @property
    def has_more(self) -> bool:
        """Whether `pump` has left work for the next round."""
        agenda = self._agenda
        return bool(agenda.touched or agenda.unfinished or agenda.late_drops or agenda.background)

    @property
    def only_moves_are_left(self) -> bool:
        """Whether nothing is left but to move and drop messages that may wait."""
        agenda = self._agenda
        return not (agenda.touched or agenda.late_drops or agenda.background)

    def pump(self, *, collects: bool = False, must_moves_wait: bool = False) -> float:
        """Have every queue that was touched hand out what it can, and do a step of the work in the
        background. Returns what it has spent of the budget of the round.

        Args: collects, whether queues that only got messages wait for more of them;
        must_moves_wait, whether no messages are moved or dropped.
        """
        services, agenda = self._services, self._agenda
        # Publishes are flushed first: what came in this round can be handed out in it.
        if services.deferred.entries:
            services.deferred.flush()
        if agenda.background:
            called(self._take_step)
        if not collects and agenda.arrivals:
            agenda.touched.update(agenda.arrivals)
            agenda.arrivals.clear()
        agenda.handed_out = agenda.spent = 0
        services.moves.are_paused = must_moves_wait
        if agenda.late_drops:
            self._drop_late()
        if agenda.unfinished and not must_moves_wait:
            self._go_on()
        if agenda.freed:
            agenda.touch_freed()
        touched = list(agenda.touched)
        # What is touched from here on has its turn in the next round.
        agenda.touched.clear()
        most = services.limits.max_handed_out
        most_spent = agenda.spent + services.limits.round_budget
        most_pumped = services.limits.max_pumped
        for index, queue in enumerate(touched):
            if agenda.handed_out >= most or agenda.spent >= most_spent or index == most_pumped:
                # A backlog must not be handed out, or thousands of queues drop messages, while
                # everybody else waits. The remaining queues come first in the next round.
                again = list(agenda.touched)
                agenda.touched.clear()
                agenda.touched.update(dict.fromkeys([*touched[index:], *again]))
                break
            queue.pump(yields=True)
        spent, agenda.spent = agenda.spent, 0
        return spent

    def _go_on(self) -> None:
        """Let queues move and drop messages that could not go in earlier rounds."""
        services, agenda = self._services, self._agenda
        most = services.limits.max_handed_out
        # Each queue that waits now has one turn: one that is not done goes to the end of the line.
        for _ in range(len(agenda.unfinished)):
            if services.moves.must_wait or agenda.handed_out >= most:
                return
            queue, _ = agenda.unfinished.popitem(last=False)
            # The queue has its turn here, and not once more with the touched ones.
            agenda.touched.pop(queue, None)
            agenda.spent += services.limits.look_cost
            queue.pump(yields=True)

    def _drop_late(self) -> None:
        """Let queues drop what is too much since publishes to many queues: with half of the budget,
        as others may have messages to move.
        """
        services, agenda = self._services, self._agenda
        services.work["max-length"] = None
        while agenda.late_drops and agenda.spent < services.limits.round_budget // 2:
            agenda.spent += services.limits.look_cost
            next(iter(agenda.late_drops)).drop_late()

    def _take_step(self) -> None:
        work = self._agenda.background.popleft()
        for _ in work:
            self._agenda.background.append(work)
            return
