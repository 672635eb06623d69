"""Who sends requests, and what they may do: decisions of an `AclTable`, remembered (pure).

A decision holds for one version of the table, so a change of ACLs is in force with the next
question. Names come from requests, so what is remembered is bounded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Protocol

from kdist.model import ANONYMOUS, Principal
from kdist.security.acls import AclTable, Operation, ResourceType

Question = tuple[Operation, ResourceType, str]

_REMEMBERED_MAX = 10_000
_NAME_MAX = 255  # of a resource that is remembered; topics' names are shorter


class Subject:
    """A principal at a host. Equal to itself alone; this one may do everything."""

    __slots__ = ("__weakref__", "host", "principal")

    is_limited = False
    rights_version = 0  # moves when what it may do does

    def __init__(self, principal: Principal, host: str) -> None:
        self.principal = principal
        self.host = host

    def may(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """Whether it may do this; if not, that is noted as a denial."""
        del operation, resource_type, name
        return True

    def could(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """As `may`, but nothing is noted."""
        return self.may(operation, resource_type, name)

    def is_granted(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """Whether somebody has given it this right; nothing is noted, and a dry run is none."""
        del operation, resource_type, name
        return False

    def may_any(self, operation: Operation, resource_type: ResourceType, /) -> bool:
        """Whether it may do this to some resource of the type; nothing is noted.

        A dry run grants nothing.
        """
        return self.may(operation, resource_type, "")

    def topic_of(self, topic_id: uuid.UUID, /) -> str | None:
        """The name of the topic with this id; only one whose rights are limited is asked."""
        raise NotImplementedError


ANYBODY = Subject(ANONYMOUS, "")
"""Everybody who has not authenticated, where everybody may do everything."""


class Judge(Protocol):
    """What limited subjects share."""

    topic_of: Callable[[uuid.UUID], str | None]
    """The name of the topic with an id; None if there is none here."""

    @property
    def table(self) -> AclTable: ...

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing is refused, only noted."""
        ...

    def note_denial(self, subject: Subject, question: Question, /) -> None:
        """Count and log what a subject may not do."""
        ...


class LimitedSubject(Subject):
    """One that may do what the ACLs say."""

    __slots__ = ("_judge", "_known", "_version")

    is_limited = True

    def __init__(self, principal: Principal, host: str, judge: Judge) -> None:
        super().__init__(principal, host)
        self._judge = judge
        self._known: dict[Question, bool] = {}
        self._version = judge.table.version

    def may(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """As of `Subject`."""
        question = operation, resource_type, name
        if self._is_permitted(question):
            return True
        self._judge.note_denial(self, question)
        return self._judge.is_dry_run

    def could(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """As of `Subject`."""
        return self._is_permitted((operation, resource_type, name)) or self._judge.is_dry_run

    def is_granted(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        """As of `Subject`."""
        return self._is_permitted((operation, resource_type, name))

    @property
    def rights_version(self) -> int:  # type: ignore[override]
        """As of `Subject`."""
        return self._judge.table.version

    def topic_of(self, topic_id: uuid.UUID, /) -> str | None:
        """As of `Subject`; None if there is none here."""
        return self._judge.topic_of(topic_id)

    def may_any(self, operation: Operation, resource_type: ResourceType, /) -> bool:
        """As of `Subject`."""
        table = self._judge.table
        return table.permits_any(self.principal, self.host, operation, resource_type)

    def _is_permitted(self, question: Question) -> bool:
        table, known = self._judge.table, self._known
        if self._version != table.version:
            self._version = table.version
            known.clear()
        answer = known.get(question)
        if answer is None:
            answer = table.permits(self.principal, self.host, *question)
            if len(question[-1]) <= _NAME_MAX:
                if len(known) >= _REMEMBERED_MAX:
                    known.clear()
                known[question] = answer
        return answer
