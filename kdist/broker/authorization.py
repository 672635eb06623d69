"""Who may do what on this broker: its subjects, and what is told of those that were refused.

With `authorizer.class.name` set, requests are decided by ACLs; without, everybody may do everything
and nobody is asked. The decisions are made in `kdist.security`; `Dispatch` asks for them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from weakref import WeakValueDictionary

from kdist.config.security import AuthorizationSettings
from kdist.errors import UserError
from kdist.metrics.broker import AuthorizationMetrics
from kdist.metrics.declare import Family
from kdist.model import Principal
from kdist.runtime.clock import Clock
from kdist.security.acls import AclTable
from kdist.security.principals import format_principal, host_text, parse_super_users
from kdist.security.subjects import ANYBODY, LimitedSubject, Question, Subject

logger = logging.getLogger(__name__)

SENTENCES_MAX = 1_000  # a minute
SENTENCES_OF_ONE_MAX = 100  # of one principal, so that others are told of too
_EVERY_NS = 60_000_000_000
_SHOWN_MAX = 250  # characters of a name


class Authorizer:
    """Owner: the broker. Whoever changes `table` calls `changed` before anything else is served."""

    def __init__(
        self,
        settings: AuthorizationSettings,
        clock: Clock,
        metrics: Family[AuthorizationMetrics],
    ) -> None:
        """Raises `UserError` if `super.users` cannot be read."""
        try:
            super_users = parse_super_users(settings.super_users)
        except ValueError as fault:
            raise UserError(f"super.users: {fault}") from fault
        self.table = AclTable(super_users, settings.allow_everyone_if_no_acl_found)
        self.is_on = settings.authorizer_class_name is not None
        self.is_dry_run = settings.authorizer_dry_run
        self.topic_of: Callable[[uuid.UUID], str | None] = lambda _: None
        self.on_change: list[Callable[[], None]] = []
        self._metrics = metrics
        self._now_ns = clock.monotonic_ns
        self._subjects: WeakValueDictionary[tuple[Principal, str], Subject] = WeakValueDictionary()
        self._told: dict[Principal, set[Question]] = {}  # in this minute
        self._sentences = self._untold = 0
        self._minute_end_ns = 0

    def subject(self, principal: Principal, host: str) -> Subject:
        """The one that stands for a principal at an address, the same for as long as it is used."""
        key = (principal, host_text(host)) if self.is_on else (principal, ANYBODY.host)
        found = self._subjects.get(key)
        if found is None:
            found = self._subjects[key] = self._make(*key)
        return found

    def _make(self, principal: Principal, host: str) -> Subject:
        if self.is_on:
            return LimitedSubject(principal, host, self)
        return ANYBODY if principal == ANYBODY.principal else Subject(principal, host)

    def changed(self) -> None:
        """The table has changed: what was allowed by the former one is asked for anew."""
        for tell in self.on_change:
            tell()

    def note_denial(self, subject: Subject, question: Question) -> None:
        """Count a denial; log it, unless that was done in the last minute."""
        operation, resource_type, name = question
        self._metrics[operation.text, resource_type.text].denials += 1
        now_ns = self._now_ns()
        if now_ns >= self._minute_end_ns:
            self._begin_minute(now_ns)
        shown = operation, resource_type, name[:_SHOWN_MAX]
        told = self._told.setdefault(subject.principal, set())
        is_room = len(told) < SENTENCES_OF_ONE_MAX and self._sentences < SENTENCES_MAX
        if shown in told or not is_room:
            self._untold += 1
            return
        told.add(shown)
        self._sentences += 1
        logger.info(
            "%r at %s is %s %s on %s %r",
            format_principal(subject.principal)[:_SHOWN_MAX],
            subject.host,
            "not to be refused yet, but lacks" if self.is_dry_run else "denied",
            operation.text,
            resource_type.text,
            shown[-1],
        )

    def _begin_minute(self, now_ns: int) -> None:
        if self._untold:
            logger.info("%d more denials in the minute before", self._untold)
        self._told.clear()
        self._sentences = self._untold = 0
        self._minute_end_ns = now_ns + _EVERY_NS
