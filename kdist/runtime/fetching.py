"""Reading a small document from a `file:` or an `https:` URL, on a thread that may wait for it."""

from __future__ import annotations

import ssl
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPSHandler,
    OpenerDirector,
    url2pathname,
)

TIMEOUT_S = 10.0


def fetch(url: str, bytes_max: int) -> bytes:
    """The content; `OSError` with a sentence if it cannot be had, or has more bytes.

    No redirection is followed, and no proxy of the environment's is asked: where to read is a
    setting, and nobody else says it.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(url2pathname(parts.path)).open("rb") as file:
            return _at_most(file.read(bytes_max + 1), bytes_max)
    if parts.scheme != "https":
        raise OSError("it is neither a file: nor an https: URL")
    opener = OpenerDirector()
    for handler in (
        HTTPSHandler(context=ssl.create_default_context()),
        HTTPErrorProcessor(),
        HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            return _at_most(answer.read(bytes_max + 1), bytes_max)
    except URLError as error:
        raise OSError(str(error.reason)) from error
    except HTTPException as error:
        raise OSError(f"its answer is no HTTP: {error}") from error


def _at_most(content: bytes, bytes_max: int) -> bytes:
    if len(content) > bytes_max:
        raise OSError(f"it has more than {bytes_max} bytes")
    return content
