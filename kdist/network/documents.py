"""Small documents from a URL: keys that an issuer publishes, a token from its endpoint.

`https:` and `file:` only, and no redirects: what a URL leads to is what its owner configured. It
blocks, so it is called on a thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    FileHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPSHandler,
    OpenerDirector,
    Request,
    UnknownHandler,
)

from kdist.errors import UserError

TIMEOUT_S = 10.0


def check_url(name: str, url: str) -> None:
    """`UserError` unless the setting `name` is a URL that `fetch` takes."""
    parts = urlsplit(url)
    is_file = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path
    if not is_file and not (parts.scheme == "https" and parts.hostname):
        raise UserError(f"{name} is {url!r}, and must be an https: or file: URL")


def fetch(
    url: str,
    bytes_max: int,
    *,
    form: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> bytes:
    """What is at `url`; `form` is posted. `OSError` if no answer comes, or more than `bytes_max`.

    `context` says whose certificates are trusted, by default those that the system trusts.
    """
    opener = OpenerDirector()
    for handler in (
        HTTPSHandler(context=context or ssl.create_default_context()),
        FileHandler(),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
        UnknownHandler(),
    ):
        opener.add_handler(handler)
    try:
        with opener.open(Request(url, form, dict(headers or {})), timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(bytes_max + 1)
    except HTTPError as error:
        raise OSError(f"{url} answers {error.code} {error.reason}") from None
    except URLError as error:
        raise OSError(f"{url}: {error.reason}") from None
    except (HTTPException, ValueError) as error:
        raise OSError(f"{url} does not speak HTTP: {type(error).__name__}") from None
    if len(content) > bytes_max:
        raise OSError(f"{url}: it has more than {bytes_max} bytes")
    return content
