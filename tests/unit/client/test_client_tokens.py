"""A client's token is fetched, kept while it lasts, and renewed before it ends."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kdist.client import tokens
from kdist.client.tokens import Endpoint, TokenSource
from kdist.errors import Error, UserError
from kdist.network.documents import check_url, fetch
from tests.refusals import refused


class Issuer:
    """In the place of `fetch`: answers with what it holds, and keeps what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.answer: bytes | OSError = b""
        self.asked: list[dict[str, Any]] = []
        self.now_s = 1000.0
        monkeypatch.setattr(tokens, "fetch", self._fetch)
        self.source = TokenSource(
            Endpoint("https://issuer/token", "me", "s3cret/ä", "kafka"), lambda: self.now_s
        )

    def _fetch(self, url: str, bytes_max: int, **more: Any) -> bytes:
        assert bytes_max < 1 << 20
        self.asked.append({"url": url, **more})
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def token(self) -> str:
        async def prepared() -> None:
            await asyncio.gather(self.source.prepare(), self.source.prepare())

        self._runner.run(prepared())
        message = self.source.exchange().respond(None)
        assert message is not None
        return message.decode().partition("Bearer ")[2].rstrip("\x01")


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    with asyncio.Runner() as runner:
        yield Issuer(monkeypatch, runner)


def answer(token: str, **more: Any) -> bytes:
    return json.dumps({"access_token": token, **more}).encode()


def jwt(**claims: Any) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.x"


def test_a_token_is_asked_for_by_the_clients_own_name(issuer: Issuer) -> None:
    issuer.answer = answer("one", expires_in=100)
    assert issuer.token() == "one"
    assert issuer.asked == [
        {
            "url": "https://issuer/token",
            "form": b"grant_type=client_credentials&scope=kafka",
            "headers": {
                "Authorization": "Basic " + base64.b64encode(b"me:s3cret%2F%C3%A4").decode(),
                "Accept": "application/json",
            },
        }
    ]


@pytest.mark.parametrize("first", [answer("one", expires_in=100), answer(jwt(exp=1100))])
def test_a_token_is_kept_for_most_of_its_life(issuer: Issuer, first: bytes) -> None:
    issuer.answer = first
    kept = issuer.token()
    issuer.answer = answer("two", expires_in=100)
    issuer.now_s += 79
    assert issuer.token() == kept
    issuer.now_s += 2
    assert issuer.token() == "two"
    assert len(issuer.asked) == 2


def test_a_token_is_used_to_its_end_while_there_is_no_other(issuer: Issuer) -> None:
    issuer.answer = answer("one", expires_in=100)
    issuer.token()
    issuer.answer = OSError("down")
    issuer.now_s += 99
    assert issuer.token() == "one"
    issuer.now_s += 1
    with refused(Error.NETWORK_EXCEPTION, "down"):
        issuer.token()


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'{"access_token":7}', b"[" * 60_000])
def test_an_answer_without_a_token_may_pass(issuer: Issuer, text: bytes) -> None:
    issuer.answer = text
    with refused(Error.NETWORK_EXCEPTION, "no token"):
        issuer.token()


def test_the_secret_is_not_shown() -> None:
    assert "s3cret" not in repr(Endpoint("https://issuer", "me", "s3cret"))


def test_a_token_in_a_file_is_read_anew_once_it_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "token"
    now_s = 1000.0
    source = TokenSource(Endpoint(file.as_uri()), lambda: now_s)
    with asyncio.Runner() as runner:
        for token in (jwt(exp=1100, n=1), jwt(exp=1200, n=2)):
            file.write_text(f"{token}\n")
            runner.run(source.prepare())
            assert token.encode() in (source.exchange().respond(None) or b"")
            now_s += 100


def test_a_document_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"12345")
    assert fetch(file.as_uri(), 5) == b"12345"
    with pytest.raises(OSError, match="more than 4"):
        fetch(file.as_uri(), 4)


@pytest.mark.parametrize(
    "url", ["http://host/", "ftp://host/", "data:,x", "file:///does/not/exist", "x"]
)
def test_no_other_scheme_is_followed(url: str) -> None:
    with pytest.raises(OSError, match=r"."):
        fetch(url, 100)


@pytest.mark.parametrize("url", ["http://host/", "https:///x", "file:", "file://host/x", "x", ""])
def test_a_setting_that_is_no_such_url_is_a_mistake(url: str) -> None:
    with pytest.raises(UserError, match="must be an https: or file: URL"):
        check_url("name", url)
