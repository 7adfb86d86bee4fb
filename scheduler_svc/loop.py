"""The only clock of the scheduler: drives the core and the executor, and hands out what becomes of each request."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from common.errors import Abandoned, CitybusError, InvalidRequest, Unavailable
from common.metrics import SchedulerMetrics
from common.step import ExecutorInfo, StepPlan
from scheduler_svc.config import Config
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import NeverFits, Request, WrongResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.delivery import Delivery
from scheduler_svc.drive import Drive
from scheduler_svc.events import HandOver
from scheduler_svc.executor_client import Contradiction, ExecutorClient, Fenced, SessionLost
from scheduler_svc.journal import Journal
from scheduler_svc.output_stream import OutputSink
from scheduler_svc.patience import Patience
from scheduler_svc.reach import RETRY_S, Reached, reach
from scheduler_svc.restored import Restored
from scheduler_svc.step_metrics import StepMetrics
from scheduler_svc.succession import hand_over_of, resume, take_in

Recover = Callable[[ExecutorInfo], list[Restored]]
"""Gives the requests of the process before this one, once the model is known."""

log = structlog.get_logger()


class SchedulerLoop:
    """Owns the core. Everything happens in one event loop, so nothing is locked.

    `on_serving` is told whenever the scheduler starts or stops to drive an executor, `on_hand_over` what it begins with
    where another one has left something; `on_plan` is shown every plan.
    """

    def __init__(
        self,
        client: ExecutorClient,
        policy: GuardedPolicy,
        settings: Config,
        metrics: SchedulerMetrics,
        journal: Journal,
        *,
        on_serving: Callable[[bool], Awaitable[None]],
        on_hand_over: Callable[[HandOver], None],
        on_plan: Callable[[StepPlan], None],
    ) -> None:
        self._client = client
        self._settings = settings
        self._metrics = StepMetrics(metrics)
        self._on_serving = on_serving
        self._on_hand_over = on_hand_over
        self._on_plan = on_plan
        self._policy = policy
        self._core: Scheduler | None = None
        self._info: ExecutorInfo | None = None
        self._journal = journal
        self._delivery = Delivery(journal)
        self._epoch: bytes | None = None
        self._ids = itertools.count(1)
        self._patience = Patience(settings.step_timeout, settings.executor_timeout)
        self._drive: Drive | None = None
        self._draining = self._ending = False
        self._idle = asyncio.Event()
        self._gone = False

    # What the front end calls

    @property
    def core(self) -> Scheduler | None:
        """The state machine; None before the first executor is connected."""
        return self._core

    @property
    def draining(self) -> bool:
        """Whether new requests are refused for good."""
        return self._draining

    def info(self) -> ExecutorInfo | None:
        """Facts of the executor that is driven now; None while there is none."""
        return self._info

    def next_sequence_ids(self, count: int) -> range:
        """Ids for new sequences, one after the other and larger than all before."""
        first = next(self._ids)
        self._ids = itertools.count(first + count)
        return range(first, first + count)

    def submit(self, request: Request, sinks: Sequence[OutputSink]) -> None:
        """Accept a request; its news go to `sinks`, one for each of its answers, and one outcome or error at last.

        Raises `InvalidRequest` where it can never fit, and `Unavailable` where it is not the time.
        """
        if self._gone:
            raise Unavailable("the scheduler is being replaced: send the request again", retry_after_s=0.5)
        if self._draining:
            raise Unavailable(
                "this server takes no new requests, as it is draining or shutting down: send the request to another"
                " one, or here again later"
            )
        if self._core is None or self._info is None:
            raise Unavailable("no executor is connected: try again in a moment", retry_after_s=1.0)
        try:
            self._core.add(request)
        except NeverFits as error:
            raise InvalidRequest(str(error)) from error
        self._delivery.add(request.sequence_id, sinks)
        self._wake()

    def cancel(self, sequence_id: int) -> None:
        """End a request. Nothing happens where it has ended already."""
        if self._core is not None:
            self._delivery.publish(self._core, self._core.cancel(sequence_id, time.monotonic()))
            self._wake()

    def refuse(self, refusing: bool) -> None:
        """Refuse new requests, or take them again. Raises `Unavailable` where this process is to end."""
        if self._ending:
            raise Unavailable("this server is shutting down: start another one to take requests again")
        self._draining = refusing
        self._idle.clear()

    async def drain(self) -> None:
        """Refuse what is new and wait for what is accepted.

        Where that is cancelled, the rest is left to a successor that reads the journal; without one it ends with an
        error.
        """
        self._draining = self._ending = True
        self._wake()
        try:
            await self._idle.wait()
        except asyncio.CancelledError:
            if self._journal.lasts:
                self.let_go()
            else:
                self._abandon(Abandoned("the server was shut down before the request ended: send it to another one"))
            raise

    def let_go(self) -> None:
        """Do nothing more: whatever runs and waits is left, as it is, to the next scheduler.

        Where that one has no journal to read, it ends with an error.
        """
        if not self._journal.lasts:
            self._abandon(Abandoned("another scheduler takes over and does not know this request: send it again"))
        self._gone = self._draining = self._ending = True
        self._core = self._info = None
        if self._drive is not None:
            self._drive.stop()
        self._delivery.let_go(Unavailable("the scheduler is being replaced: attach again", retry_after_s=0.1))

    # The loop itself

    async def run(self, recover: Recover) -> None:
        """Drive executors, one session after the other, until cancelled or told to let go.

        Raises `Fenced` where another scheduler has taken the executor over.
        """
        while True:
            try:
                anew = self._core is None
                reached = await reach(self._client, anew=anew, epoch=self._epoch, may_go_on=self._may_go_on)
                if reached is None:
                    return
                async with reached.session:
                    if self._gone:
                        return
                    drive = self._take_up(reached, recover)
                    await self._on_serving(True)
                    await drive.run()
            except Fenced:
                self.let_go()
                raise
            except (Contradiction, WrongResult) as error:
                self._epoch = None
                log.error("executor contradicts its plan", reason=str(error))
            except SessionLost as error:
                log.warning("executor lost", reason=str(error))
            finally:
                self._info = self._drive = None
                self._metrics.disconnected()
            if self._gone:
                return
            await self._on_serving(False)
            self._pass_time()
            await asyncio.sleep(RETRY_S)

    def _may_go_on(self) -> bool:
        """While there is no executor: time limits pass, and in the end patience does."""
        self._pass_time()
        return not self._gone

    def _pass_time(self) -> None:
        if self._core is not None:
            self._delivery.publish(self._core, self._core.expire(time.monotonic()))
        if self._patience.lost():
            self._abandon(Abandoned("the executor is away: try again later", retry_after_s=5.0))
        self._note_idle()

    def _take_up(self, reached: Reached, recover: Recover) -> Drive:
        """Begin a session, from what the executor holds and what is known of it."""
        info, term, core = reached.info, reached.session.term, self._core
        restored: list[Restored] = []
        begins = core is None
        if core is None:
            window, guesses = self._settings.window, self._settings.speculative_tokens
            core = self._core = Scheduler(info, self._policy, term=term, window=window, speculative_tokens=guesses)
            restored = recover(info)
            take_in(core, restored, self._delivery, self._journal)
            taken = [each.sequence_id for each in reached.held.sequences] + [each.request.last_id for each in restored]
            self._ids = itertools.count(max([self._journal.last_id, *taken]) + 1)
        known = core.live()
        resume(core, reached, restored, self._delivery)
        if begins and (found := hand_over_of(core, reached, known)):
            self._on_hand_over(found)
        self._info, self._epoch = info, info.epoch
        self._drive = Drive(
            core,
            reached.session,
            self._delivery,
            self._journal,
            self._metrics,
            self._patience,
            on_plan=self._on_plan,
            on_turn=self._note_idle,
        )
        return self._drive

    def _wake(self) -> None:
        if self._drive is not None:
            self._drive.wake.set()

    def _abandon(self, error: CitybusError) -> None:
        if self._core is not None:
            self._delivery.abandon(self._core, error)

    def _note_idle(self) -> None:
        if self._draining and (self._core is None or not self._core.has_work):
            self._idle.set()
