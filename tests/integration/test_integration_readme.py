"""The application of the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.integration.standalone_process import standalone

README = Path(__file__).parents[2] / "README.md"


def test_the_application_of_the_readme_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    code = [line for line in block.splitlines() if line.strip()]
    assert len(code) <= 10
    shown: list[tuple[Any, ...]] = []

    class AllRead(Exception):
        """The loop waits for more: this ends it."""

    def show(*things: Any) -> None:
        shown.append(things)
        if len(shown) == 4:
            raise AllRead

    with standalone(tmp_path) as run:
        block = block.replace("localhost:9092", f"127.0.0.1:{run.port}")
        try:
            exec(compile(block, "README.md", "exec"), {"print": show})
        except AllRead:
            pass
    assert shown[0] == ("at offset", 0)
    assert {values[3] for values in shown[1:]} == {b"/start", b"/basket", b"/pay"}
