"""Which mutants a run chooses, and of which files."""

from __future__ import annotations

import random
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from tests.mutation.__main__ import choose

ROOT = Path(__file__).parents[3]
NAMES = {
    "a/large.py": [f"a.large.x_f__mutmut_{number}" for number in range(90)],
    "a/small.py": [f"a.small.x_f__mutmut_{number}" for number in range(2)],
    "b/other.py": [f"b.other.x_f__mutmut_{number}" for number in range(8)],
}


def of_files(chosen: list[str]) -> list[int]:
    return [sum(name in chosen for name in names) for names in NAMES.values()]


def test_each_file_has_its_share_and_a_few_at_least() -> None:
    assert of_files(choose(NAMES, 50, random.Random(1))) == [45, 2, 4]
    assert of_files(choose(NAMES, 1, random.Random(1))) == [3, 2, 3]


def test_a_seed_chooses_the_same_whatever_the_order_of_files() -> None:
    backwards = dict(reversed(NAMES.items()))
    assert choose(NAMES, 20, random.Random(3)) == choose(backwards, 20, random.Random(3))
    assert choose(NAMES, 20, random.Random(3)) != choose(NAMES, 20, random.Random(4))


def test_files_that_are_named_have_all_of_the_sample() -> None:
    assert of_files(choose(NAMES, 10, random.Random(1), "b/*")) == [0, 0, 8]


def test_all_files_and_tests_that_the_settings_name_exist() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "kdist").rglob("*.py")]
    for pattern in settings["only_mutate"]:
        assert any(fnmatchcase(file, pattern) for file in files), pattern
    for path in settings["pytest_add_cli_args_test_selection"]:
        assert (ROOT / path).exists(), path
