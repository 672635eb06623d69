"""Break the code a little and see whether its tests notice: `make mutate [SAMPLE=n] [SEED=n]`.

mutmut makes the mutants, of the files that `[tool.mutmut]` in pyproject.toml names, and runs for
each the tests that reach its function, until one fails or their time is over. This chooses which,
in each file its share, works on a copy of the tree in `.cache/mutation`, and prints what survived.
With SIMULATE=n each survivor then plays n seeds of the simulator. Exits with 1 if more than 5%
survived: a survivor gets a test, or its line in docs/benchmarks/mutants.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPY = ROOT / ".cache" / "mutation"
MUTANTS = COPY / "mutants"
# Few: to have mutmut make all mutants, and see who tests what.
FIRST = "kdist.replication.leadership.x_still_leads__*"
SHARE_MIN = 3  # mutants of a file that has so many
SURVIVORS_MAX = 0.05
SURVIVED = {"survived", "no tests"}

# The same examples of each property in each run, and one process: others may be at work.
ENVIRONMENT = {**os.environ, "CI": "1"}
MUTMUT = [str(Path(sys.executable).with_name("mutmut"))]
RUN = [*MUTMUT, "run", "--max-children", "1"]


def choose(
    names: Mapping[str, Sequence[str]], count: int, rng: random.Random, files: str = "*"
) -> list[str]:
    """About `count` mutants: of each file that `files` matches by its share, at least a few."""
    chosen = {
        file: sorted(each) for file, each in sorted(names.items()) if fnmatchcase(file, files)
    }
    total = sum(map(len, chosen.values()))
    return [
        name
        for each in chosen.values()
        for name in rng.sample(
            each, min(len(each), max(SHARE_MIN, round(count * len(each) / total)))
        )
    ]


def mutate(count: int, rng: random.Random, files: str, seeds: int) -> int:
    """Run a sample and print what came of it; the exit status."""
    _copy()
    _mutmut(RUN, FIRST)
    names = {file: list(statuses) for file, statuses in _statuses().items()}
    sample = set(choose(names, count, rng, files))
    _mutmut(RUN, *sorted(sample))
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for file, statuses in _statuses().items():
        for name, status in statuses.items():
            if name not in sample:
                continue
            if status in SURVIVED:
                status = "simulation" if seeds and _is_seen_by_simulation(name, seeds) else status
            outcomes[file][status] += 1
            if status in SURVIVED:
                survivors.append(name)
    _print(outcomes)
    for name in survivors:
        subprocess.run([*MUTMUT, "show", name], cwd=COPY, check=True)
    survived = len(survivors) / max(1, len(sample))
    print(f"{len(sample)} mutants, {len(survivors)} survived: {survived:.1%}")
    return 1 if survived > SURVIVORS_MAX else 0


def _copy() -> None:
    """What git knows of the tree, as it is now, and the compiled codec."""
    shutil.rmtree(COPY, ignore_errors=True)
    known = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(known, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    codec = [str(each.relative_to(ROOT)) for each in (ROOT / "kdist").rglob("*.so")]
    for name in [*told.splitlines(), *codec]:
        if (ROOT / name).exists():  # else it was removed
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name, follow_symlinks=False)


def _mutmut(*command: str | Sequence[str]) -> None:
    """Run it, with what it says in a file; where it fails, its last lines are printed."""
    words = [word for each in command for word in ([each] if isinstance(each, str) else each)]
    log = COPY / "mutmut.log"
    with log.open("w") as out:
        ended = subprocess.run(words, cwd=COPY, env=ENVIRONMENT, stdout=out, stderr=out)
    if ended.returncode:
        sys.exit(f"{log.read_text()[-4000:]}\nmutmut failed; {log} has the whole.")


def _statuses() -> dict[str, dict[str, str]]:
    """What became of each mutant, by file; mutmut keeps it beside what it generated."""
    from mutmut.stats import status_by_exit_code

    return {
        str(meta.relative_to(MUTANTS).with_suffix("")): {
            name: status_by_exit_code[code]
            for name, code in json.loads(meta.read_text())["exit_code_by_key"].items()
        }
        for meta in sorted(MUTANTS.rglob("*.py.meta"))
    }


def _is_seen_by_simulation(name: str, seeds: int) -> bool:
    command = [sys.executable, "-m", "tests.simulator", "--seeds", str(seeds)]
    mutated = {**ENVIRONMENT, "MUTANT_UNDER_TEST": name}
    return subprocess.run(command, cwd=MUTANTS, env=mutated, capture_output=True).returncode != 0


def _print(outcomes: Mapping[str, Counter[str]]) -> None:
    for file, counts in outcomes.items():
        print(f"{file}: {', '.join(_counted(counts))}")
    print(f"all: {', '.join(_counted(sum(outcomes.values(), Counter())))}")


def _counted(counts: Counter[str]) -> Iterator[str]:
    return (f"{count} {status}" for status, count in sorted(counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="how many mutants, about")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--files", default="*", help="as in kdist/storage/*")
    parser.add_argument("--simulate", type=int, default=0, help="seeds for each survivor")
    given = parser.parse_args()
    return mutate(given.sample, random.Random(given.seed), given.files, given.simulate)


if __name__ == "__main__":
    sys.exit(main())
