"""`python -m tests.bench [PART…]`: what is measured, by parts; all of them without a name.

- rig: a rig that is as it should be is found to be so (on a lab that serves)
- growth: what a run that changes nothing costs as a rig grows (on stand-in hosts)
- backup: backup and restore against plain tar and zstd (on 3 GB of real venvs)
- moving: an image between two hosts, against the seed's pipe (on a lab with its engine)
- streams: two ends of a transfer where neither disk nor wire is the bound (on this machine)
- weights: a folder of weights between two hosts, against disk and wire (on a lab)
- rollback: seconds until the former engine's process is started (on the lab's tower that serves)

Prints the tables and writes each part's section of docs/benchmarks.md; exit status 1 when a target
is not met or something was not as it should be.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.bench import backup, growth, moving, rig, rollback, streams, weights
from tests.bench.rig import ROUNDS, table
from tests.infra.plugin import ROOT

PARTS = ("rig", "growth", "backup", "streams", "moving", "weights", "rollback")


def part(name: str, asked: argparse.Namespace) -> rig.Part:
    """One part, measured; RuntimeError says why it was not."""
    rounds = asked.rounds
    if name == "backup":
        return backup.part(asked.tree, asked.work, rounds)
    if name == "growth":
        return growth.part(rounds)
    if name == "streams":
        return streams.part(rounds)
    if name == "moving":
        return moving.part(rounds)
    if name == "weights":
        return weights.part(rounds)
    if name == "rollback":
        return rollback.part(rounds)
    return rig.part(asked.rig, asked.rig_data, rounds)


def main(arguments: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rig", default="inventory/lab.py", metavar="INVENTORY")
    parser.add_argument("--rig-data", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tree", type=Path, help="backup: a venv; it is copied until it is 3 GB")
    parser.add_argument("--work", type=Path, help="backup: where 4 times its size has room")
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "benchmarks.md")
    asked = parser.parse_args(arguments)
    strange = [name for name in asked.parts if name not in PARTS]
    if strange:
        parser.error(f"no part {', '.join(strange)}; there are: {', '.join(PARTS)}")
    # As in an operator's shell: this variable has our modules compiled anew in every run.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    code = 0
    for name in asked.parts or PARTS:
        try:
            done = part(name, asked)
        except RuntimeError as error:
            print(f"bench: {name}: {error}", file=sys.stderr)
            code = 1
            continue
        rig.write(asked.write, done)
        print(f"{done.title}\n{table(done.rows)}")
        code = 1 if done.missed else code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
