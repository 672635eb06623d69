"""What a rule may decide about a request (pure), and the forms that most rules have.

A rule is a function of a request, its version, and who asks. It answers `ALLOWED`, `Refused` with
the whole answer, or `Split`: the request with what is left of it once what was refused is taken
out, and what makes the answer to that the answer to the whole. A part that was refused never
reaches a handler, so that nothing of it, its existence included, can be seen in the answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from kdist.errors import Error
from kdist.security.acls import CLUSTER_NAME, Operation, ResourceType

T = TypeVar("T")

ERRORS = {
    ResourceType.TOPIC: Error.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: Error.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: Error.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Asker(Protocol):
    """Who sends the request."""

    def may(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """Whether the request may do this; if not, it is noted as a denial."""
        ...

    def could(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """As `may`, but it denies nothing: something is only left out."""
        ...

    def is_granted(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """Whether it has this right, where another will do: a dry run grants none."""
        ...

    def may_any(self, operation: Operation, resource_type: ResourceType, /) -> bool:
        """As `is_granted`, for some name of the type."""
        ...

    def topic_of(self, topic_id: Any, /) -> str | None:
        """The name of the topic with this id; None if there is none here."""
        ...


class Refused(NamedTuple):
    """None is answered, and its connection closed, if the answer is None."""

    response: Any


class Split(NamedTuple):
    """The rest of a request, and what completes the answer to it."""

    request: Any
    complete: Callable[[Any], Any]


ALLOWED = None
Decision = Refused | Split | None
Rule = Callable[[Any, int, Asker], Decision]


def free(request: Any, version: int, asker: Asker) -> Decision:
    """The rule of what anybody may do."""
    del request, version, asker
    return ALLOWED


class Right(NamedTuple):
    """One operation on one type of resource."""

    operation: Operation
    resource_type: ResourceType

    @property
    def error(self) -> Error:
        return ERRORS[self.resource_type]

    def whole(
        self, refuse: Callable[[Any, int, Error], Any], name_of: Callable[[Any], str] | None = None
    ) -> Rule:
        """A rule that refuses the request as a whole. It is about the cluster, or that name."""

        def rule(request: Any, version: int, asker: Asker) -> Decision:
            name = CLUSTER_NAME if name_of is None else name_of(request)
            if asker.may(*self, name):
                return ALLOWED
            return Refused(refuse(request, version, self.error))

        return rule

    def each(
        self,
        entries: str,
        name_of: Callable[[Any], str],
        refuse: Callable[[Any, Error], Any],
        results: str,
    ) -> Rule:
        """A rule that decides about each of a request's `entries`, which `results` answer."""

        def rule(request: Any, version: int, asker: Asker) -> Decision:
            del version
            kept, lost = sift(
                getattr(request, entries), lambda each: asker.may(*self, name_of(each))
            )
            return split(request, entries, kept, results, [refuse(e, self.error) for e in lost])

        return rule


def sift(entries: Iterable[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Those that are allowed, and the others."""
    kept: list[T] = []
    lost: list[T] = []
    for each in entries:
        (kept if is_allowed(each) else lost).append(each)
    return kept, lost


def split(
    request: Any, entries: str, kept: Sequence[Any], results: str, refusals: Sequence[Any]
) -> Decision:
    """The decision that keeps these entries, and answers these refusals for the others.

    An empty list may ask for all there is, so a request without entries is not handed on.
    """
    if not refusals:
        return ALLOWED
    if not kept:
        return Refused(request.api.response(**{results: list(refusals)}))

    def complete(response: Any) -> Any:
        return dataclasses.replace(response, **{results: [*getattr(response, results), *refusals]})

    return Split(dataclasses.replace(request, **{entries: list(kept)}), complete)


def in_turn(*rules: Rule) -> Rule:
    """The rules one after the other; all but the last refuse the request as a whole."""

    def rule(request: Any, version: int, asker: Asker) -> Decision:
        for each in rules[:-1]:
            refused = each(request, version, asker)
            if refused is not ALLOWED:
                return refused
        return rules[-1](request, version, asker)

    return rule


def bits(asker: Asker, mask: int, resource_type: ResourceType, name: str) -> int:
    """Those of the operations in `mask` that are allowed, as authorized operations (KIP-430)."""
    return sum(
        1 << operation
        for operation in Operation
        if mask >> operation & 1 and asker.could(operation, resource_type, name)
    )
