"""Carries decisions out: first in ZooKeeper, then in the controller context, then on the brokers.

The order matters if the controller dies in between: whatever ZooKeeper has, the next controller
sends to the brokers; whatever it does not have, no broker was ever sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import groupby, islice

from kdist.controller.channels import SENT_AT_ONCE, ControllerChannelManager
from kdist.controller.context import ControllerContext, Loss, Topic
from kdist.controller.deletions import Deletions
from kdist.controller.elections import (
    Plan,
    Planner,
    is_unclean,
    plan_for_broker_change,
    plan_for_new,
    plan_for_shutdown,
)
from kdist.controller.loading import Loader
from kdist.controller.reassignments import (
    MoveSteps,
    Target,
    left_of_request,
    plan_begin,
    plan_completions,
    plan_new_epochs,
)
from kdist.controller.topics import Planned
from kdist.controller.writing import FencedWriter, Removed
from kdist.errors import ApiError
from kdist.metrics.controller import ControllerMetrics
from kdist.model import NO_LEADER, LeaderAndIsr, TopicPartition
from kdist.runtime.steps import parted
from kdist.storage.names import some_of

logger = logging.getLogger(__name__)

PLANNED_AT_ONCE = 500  # partitions, in some 3 ms
MOVED_AT_ONCE = 400  # partitions of a topic, in one multi with the topic's own znode


class Executor:
    """Owned by the term, which calls one method at a time."""

    def __init__(
        self,
        cluster: ControllerContext,
        writer: FencedWriter,
        loader: Loader,
        channels: ControllerChannelManager,
        metrics: ControllerMetrics,
        on_planned: Callable[[Planned], None],
    ) -> None:
        self.cluster = cluster
        self.channels = channels
        self.deletions = Deletions()
        self._writer = writer
        self._loader = loader
        self._metrics = metrics
        self._on_planned = on_planned
        self._requested: dict[TopicPartition, Target] = {}  # by an old tool, and not moved yet

    @property
    def controller_epoch(self) -> int:
        """The term's."""
        return self._writer.controller_epoch

    async def elect(self, partitions: Iterable[TopicPartition], planner: Planner) -> None:
        """Give partitions the states that the planner has for them, and send those to the brokers.

        All that one event changes goes out once all of it is written.
        """
        written, found = await self._write_states(partitions, planner)
        for some in parted(written | found, SENT_AT_ONCE):
            self.channels.update_states(some)
            if len(some) == SENT_AT_ONCE:
                await asyncio.sleep(0)

    async def note_disks(self) -> None:
        """Note the disks of the live brokers, now that all partitions were judged by them.

        Also while there are topics that could not be read: judging all the others again, at the
        next controller, would take replicas out of ISRs that have long been filled.
        """
        cluster = self.cluster
        for broker_id in sorted(cluster.alive):
            if (loss := cluster.loss(broker_id)) is not Loss.NOTHING:
                logger.warning("broker %d has come back and may lack %s", broker_id, loss.value)
        disks = cluster.unvetted_disks()
        await self._writer.write_disks(disks, cluster.vetted_disks)
        cluster.vetted_disks.update(disks)

    async def elect_first(self, partitions: Iterable[TopicPartition]) -> None:
        """Give their first state to those partitions that have none."""
        new = [each for each in partitions if self.cluster.leader_and_isr(each) is None]
        await self.elect(new, plan_for_broker_change)

    async def alter_isrs(self, partitions: Iterable[TopicPartition], planner: Planner) -> None:
        """Write ISRs that leaders have proposed; they learn by the answer, and others later."""
        written, found = await self._write_states(partitions, planner)
        self.channels.update_metadata(written)
        self.channels.update_states(found)

    async def move_leaders(self, broker_id: int) -> list[TopicPartition]:
        """Have a broker that is about to stop lead nothing, and be in no ISR, where others can be.

        Only then does it stop fetching. Returns the partitions with other replicas that it leads
        all the same. Those without count for nothing: they have nowhere to go, and waiting would
        not help.
        """
        replicas = self.cluster.replicas
        shared = [
            each
            for each in self.cluster.tally.concerning([broker_id])
            if broker_id in replicas(each) and len(replicas(each)) > 1
        ]
        await self.elect(shared, plan_for_shutdown)
        self.channels.stop(broker_id, shared)
        states = ((each, self.cluster.leader_and_isr(each)) for each in shared)
        return [each for each, state in states if state is not None and state.leader == broker_id]

    async def _write_states(
        self, partitions: Iterable[TopicPartition], planner: Planner
    ) -> tuple[dict[TopicPartition, None], dict[TopicPartition, None]]:
        """Plan and write; partitions that someone else wrote are read and planned for again, alone.

        Planned in slices: nobody else changes the context meanwhile, and what is sent to brokers is
        what it has. Returns the partitions that were written, and those found with a state of
        someone else's.
        """
        written: dict[TopicPartition, None] = {}
        found: dict[TopicPartition, None] = {}
        epoch = self._writer.controller_epoch
        plan: Plan = {}
        for some in parted(partitions, PLANNED_AT_ONCE):
            plan |= planner(self.cluster, some, epoch)
            if len(some) == PLANNED_AT_ONCE:
                await asyncio.sleep(0)
        while plan:
            refused: Plan = {}
            async for chunk, is_written in self._writer.write_states(plan):
                if is_written:
                    self._put_written(chunk)
                    written |= dict.fromkeys(chunk)
                    if len(chunk) >= PLANNED_AT_ONCE // 2:
                        await asyncio.sleep(0)
                else:
                    refused |= chunk
            if not refused:
                break
            left, lost = await self._reread(refused, written, found)
            plan = planner(self.cluster, left, epoch)
            plan |= plan_for_broker_change(self.cluster, lost, epoch)
        return written, found

    def _put_written(self, written: Plan) -> None:
        for partition, state in written.items():
            before = self.cluster.leader_and_isr(partition)
            is_led = before is not None and state.leader not in (before.leader, NO_LEADER)
            self._metrics.elections += is_led
        self._report_unclean(written)
        self.cluster.put_states(written)

    def _report_unclean(self, written: Plan) -> None:
        """Say by whose election what may be lost."""
        unclean: dict[tuple[int, Loss], list[TopicPartition]] = {}
        for partition, state in written.items():
            before = self.cluster.leader_and_isr(partition)
            if before is not None and is_unclean(before, state):
                leader = state.isr[0]  # nobody else is in it
                loss = self._loss_of(leader, before)
                unclean.setdefault((leader, loss), []).append(partition)
        for (leader, loss), partitions in unclean.items():
            self._metrics.unclean_elections += len(partitions)
            lacks = "what it had not fetched" if loss is Loss.NOTHING else loss.value
            logger.warning(
                "broker %d was elected for %d partitions though it may lack %s, which is lost: %s",
                *(leader, len(partitions), lacks, some_of(partitions)),
            )

    def _loss_of(self, leader: int, before: LeaderAndIsr) -> Loss:
        if leader in before.emptied:
            return Loss.ALL
        return Loss.UNFLUSHED if leader in before.lossy else self.cluster.loss(leader)

    async def _reread(
        self,
        refused: Plan,
        written: dict[TopicPartition, None],
        found: dict[TopicPartition, None],
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Take in what ZooKeeper has of these partitions.

        Returns those to plan for again, and those whose state was removed by someone else: a new
        one goes on from it, since an epoch that began anew would be refused by all replicas, and
        those that were not in sync would be elected. A state as it was to be was written by us, and
        the answer was lost (KAFKA-1382). The znodes of a topic that is gone are left alone: its own
        watch has fired.
        """
        read, unreadable = await self._loader.states(refused)
        states = {each.partition: each for each in read}
        missing = {each.topic for each in refused if each not in states} - unreadable
        topics = await self._loader.existing_topics(sorted(missing)) if missing else set()
        left: list[TopicPartition] = []
        lost: list[TopicPartition] = []
        for partition, wanted in refused.items():
            each, known = states.get(partition), self.cluster.leader_and_isr(partition)
            if each is not None and each.state == wanted:
                self._put_written({partition: wanted})
                written[partition] = None
                continue
            if each is None and partition.topic not in topics:
                continue
            if each is None and known is not None:
                logger.warning("the state of %s was removed by someone else", partition)
                self.cluster.lose_state(partition)
                found[partition] = None
                lost.append(partition)
                continue
            if each is not None and each.state != known:
                logger.warning("the state of %s was written by someone else", partition)
                self.cluster.put_state(partition, each.state, each.mzxid)
                found[partition] = None
            left.append(partition)
        return left, lost

    # Moves of partitions to other replicas

    async def move(self, steps: MoveSteps) -> None:
        """Write these steps, topic by topic, and send them to the brokers."""
        moved: list[TopicPartition] = []
        for name, of_topic in groupby(sorted(steps), key=lambda each: each.topic):
            partitions = iter(of_topic)
            while some := list(islice(partitions, MOVED_AT_ONCE)):
                await self._move_some(name, {each: steps[each] for each in some})
                moved += some
        self.channels.update_states(moved)
        for broker_id in sorted(self.cluster.alive):
            self._delete_moved(broker_id, {*moved})

    async def _move_some(self, name: str, steps: MoveSteps) -> None:
        changes = {each.partition: step.assigned for each, step in steps.items()}
        states = {each: step.state for each, step in steps.items() if step.state is not None}
        topic = self.cluster.topics[name].with_assigned(changes)
        self.cluster.put_topic(await self._writer.write_moves(topic, states), changes)
        self._put_written(states)
        for partition, (assigned, _) in steps.items():
            what = f"moves to {list(assigned.target)}" if assigned.is_moving else "has moved"
            logger.info("%s %s; its replicas are %s", partition, what, list(assigned.replicas))

    async def complete_moves(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Complete the moves of these partitions, or of all, whose targets are in sync."""
        cluster = self.cluster
        chosen = cluster.moving() if partitions is None else partitions
        moving = [each for each in chosen if cluster.is_moving(each)]
        if moving and (steps := plan_completions(cluster, moving, self.controller_epoch)):
            await self.move(steps)
            await self.trim_reassignment_request()

    async def resume_moves(self) -> None:
        """Go on with the moves that an earlier controller began.

        Brokers may not have heard of an assignment that it wrote, and those of Apache Kafka take a
        new one only with a new epoch.
        """
        if moving := self.cluster.moving():
            logger.info("%d partitions are being moved: %s", len(moving), some_of(moving))
            await self.elect(moving, plan_new_epochs)
            await self.complete_moves()

    async def request_moves(self, targets: Mapping[TopicPartition, Target]) -> None:
        """Move what an old tool wants to be moved."""
        steps: MoveSteps = {}
        for partition, target in targets.items():
            try:
                step = plan_begin(self.cluster, partition, target, self.controller_epoch)
            except ApiError as error:
                logger.warning("%s is not moved to %s: %s", partition, list(target), error)
                continue
            if step is not None:
                steps[partition] = step
        self._requested = dict(targets)
        await self.move(steps)
        await self.complete_moves(steps)
        await self.trim_reassignment_request()
        if not targets:  # nothing was asked for, or nothing that can be read
            await self._writer.write_reassignment({})

    async def trim_reassignment_request(self) -> None:
        """Take out of an old tool's request what is done with."""
        left = left_of_request(self.cluster, self._requested)
        if left != self._requested:
            await self._writer.write_reassignment(left)
            self._requested = left

    def delete_moved(self, broker_id: int) -> None:
        """Have a broker delete the logs of what was moved away from it."""
        self._delete_moved(broker_id, None)

    def _delete_moved(self, broker_id: int, among: Container[TopicPartition] | None) -> None:
        removed = self.cluster.removed_from(broker_id)
        chosen = [each for each in removed if among is None or each in among]
        if chosen:
            self.channels.remove(broker_id, chosen)

    async def complete_removals(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """A broker has deleted the logs of partitions that were moved away from it."""
        deleted = {*partitions} & {*self.cluster.removed_from(broker_id)}
        topics: list[Topic] = []
        for name, of_topic in groupby(sorted(deleted), key=lambda each: each.topic):
            topic, changes = self.cluster.topics[name], {}
            for each in of_topic:
                assigned = topic.assigned(each.partition)
                left = tuple(i for i in assigned.removed if i != broker_id)
                changes[each.partition] = assigned._replace(removed=left)
            topics.append(topic.with_assigned(changes))
        await self.assign(topics)

    async def create(self, planned: Sequence[Planned]) -> None:
        """Create topics with the states of their partitions."""
        for each in planned:
            self._on_planned(each)
        topics = [each.topic for each in planned]
        states = plan_for_new(topics, self.cluster.electable, self._writer.controller_epoch)
        async for created, written in self._writer.create_topics(planned, states):
            for topic in created:
                self.cluster.put_topic(topic)
                count = len(topic.assignment)
                logger.info("created topic %s with %d partitions", topic.name, count)
            self._put_written(written)
            self.channels.update_states(written)

    async def assign(self, topics: Sequence[Topic]) -> None:
        """Write topics' new assignments or ids."""
        for topic in await self._writer.write_topics(topics):
            self.cluster.put_topic(topic)

    async def request_deletions(self, topics: Iterable[Topic]) -> None:
        """Begin to delete topics; no effect on those that are being deleted already."""
        new = [topic for topic in topics if topic.name not in self.cluster.queued_for_deletion]
        if new:
            await self._writer.request_deletions([topic.name for topic in new])
            await self.delete(new)

    async def delete(self, topics: Iterable[Topic]) -> None:
        """Carry out deletions whose requests are in ZooKeeper."""
        for topic in topics:
            logger.info("deleting topic %s", topic.name)
            self.cluster.queue_for_deletion(topic.name)
            self.deletions.begin(topic)
            self.channels.update_deleted_topic(topic)
        for broker_id in sorted(self.cluster.alive):
            self.delete_replicas(broker_id)
        await self.complete_deletions()

    def delete_replicas(self, broker_id: int) -> None:
        """Have a broker delete its replicas of topics queued for deletion."""
        left = self.deletions.left_on(broker_id)
        if left:
            self.channels.delete(broker_id, left)

    async def complete_deletions(self) -> None:
        """Remove the znodes of topics queued for deletion that have no replica left."""
        removed = [Removed(name, self._with_state(name)) for name in self.deletions.complete()]
        async for names in self._writer.remove_topics(removed):
            self.cluster.drop_topics(names)
            for name in names:
                self.deletions.end(name)
                self._metrics.deleted_topics += 1
                logger.info("deleted topic %s", name)
        self.deletions.release_blocked(self.cluster.alive)

    def _with_state(self, name: str) -> list[TopicPartition]:
        topic = self.cluster.topics.get(name)
        partitions = topic.partitions if topic else ()
        return [each for each in partitions if self.cluster.leader_and_isr(each) is not None]

    async def complete_preferred_election(self) -> None:
        """An old tool's request was carried out, as far as that is possible."""
        await self._writer.complete_preferred_election()

    async def refuse_deletion(self, name: str, why: str) -> None:
        """Withdraw a request to delete a topic, and log why."""
        logger.warning("topic %s is not deleted: %s", name, why)
        await self._writer.withdraw_deletion(name)

    def forget(self, topic: Topic) -> None:
        """Drop a topic whose znodes someone removed: nobody leads or sees it any more.

        Its replicas and committed offsets stay: the removal may have been a mistake.
        """
        logger.warning("topic %s is gone from ZooKeeper; its replicas stay on disk", topic.name)
        self.cluster.drop_topics([topic.name])
        self.channels.update_all()
        self.deletions.end(topic.name)
