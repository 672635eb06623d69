"""Bugs of the controller, to be planted: one place each, as a tired engineer leaves it."""

from __future__ import annotations

from kdist.controller import elections, isr_proposals, writing
from kdist.controller.channels import BrokerChannel
from kdist.controller.context import ControllerContext
from kdist.controller.term import ControllerTerm
from tests.simulator.bug import Edit, Planted, Spot

PLANTED_IN_CONTROLLING: dict[str, Planted] = {
    # What comes late
    "a topic that was made anew is deleted by an order for the one before": Edit(
        *(Spot.LATE, BrokerChannel._send_stop_replica),
        "{each for each in batch.deletions if each.topic in queued}",
        "batch.deletions",
    ),
    "a proposal that was written is refused if it is asked again (14144)": Edit(
        *(Spot.LATE, isr_proposals.judge),
        "proposal.isr.keys() == set(state.isr)",
        "proposal.isr.keys() == set(state.isr) and proposal.partition_epoch == state.zk_version",
    ),
    # Losses
    "who has lost something stays eligible": Edit(
        *(Spot.LOSS, elections.vet),
        "tuple(each for each in before.eligible if each not in lossy)",
        "before.eligible",
    ),
    "who lost its page cache is trusted by what its topic is set to now": Edit(
        *(Spot.LOSS, elections._candidates),
        "unflushed=[e for e in unflushed if not cluster.has_flushed(e, partition)]",
        "unflushed=() if settings.flush_before_expose else unflushed",
    ),
    # Beliefs
    "who leaves an ISR is not eligible": Edit(
        *(Spot.BELIEF, isr_proposals.judge),
        "eligible=eligible_after(state, isr, replicas, min_isr)",
        "eligible=state.eligible",
    ),
    "the second that leaves an ISR below its minimum ends the first's eligibility": Edit(
        *(Spot.BELIEF, elections.eligible_after), "{*before.isr, *before.eligible}", "{*before.isr}"
    ),
    "eligible replicas stay once the ISR is at its minimum": Edit(
        *(Spot.BELIEF, elections.eligible_after), "len(isr) >= min_isr", "len(isr) > min_isr"
    ),
    "a member's earlier registration may join (KIP-903)": Edit(
        *(Spot.BELIEF, isr_proposals._is_eligible),
        "epoch in (NO_EPOCH, cluster.brokers[member].epoch)",
        "epoch <= cluster.brokers[member].epoch",
    ),
    "a new controller does not notice who bounced before it": Edit(
        *(Spot.BELIEF, ControllerTerm._load_topics),
        "each.state, each.mzxid",
        "each.state, cluster.newest_registration",
    ),
    "a broker that wanted to stop may not lead in its next life": Edit(
        *(Spot.BELIEF, ControllerContext.is_electable),
        "self.shutting_down.get(broker_id, NO_EPOCH) < broker.epoch",
        "broker_id not in self.shutting_down",
    ),
    "a disk counts as known before its replicas are judged": Edit(
        *(Spot.BELIEF, ControllerTerm._process_broker_change),
        "await self._executor.elect(concerned, plan_for_broker_change)\n"
        "    await self._executor.note_disks()",
        "await self._executor.note_disks()\n"
        "    await self._executor.elect(concerned, plan_for_broker_change)",
    ),
    # Limits
    "the first of each chunk of writes is left out": Edit(
        *(Spot.LIMITS, writing.chunked),
        "continue\n            multi.add(first)",
        "continue",
    ),
    "the steps of a topic that needs several writes are cut short": Edit(
        *(Spot.LIMITS, writing.packed),
        "multi = MultiBuilder()\n            multi.add(step)",
        "multi = MultiBuilder()",
    ),
    # APIs
    "a preferred replica leads that is not in sync": Edit(
        *(Spot.APIS, elections.may_lead_by_preference),
        "preferred in state.isr and",
        "bool(state.isr) and",
    ),
    "a topic's setting that allows an election has none held": Edit(
        *(Spot.APIS, ControllerTerm._process_settings_change),
        "await self._executor.elect(topic.partitions, plan_for_broker_change)",
        "pass",
    ),
    # Errors
    "who waits for what is being sent waits for what is sent next": Edit(
        *(Spot.ERRORS, BrokerChannel.acknowledged),
        "self._sending.waiters.append(waiter)",
        "self._pending.waiters.append(waiter)",
    ),
}
