"""Runs every parity case in a folder.

    python -m tests.parity DIR [--require PATTERN]...

One line a case with the worst difference in units of the tolerance; the last line is ``N passed, N failed, N not
there``. Exit 1 on a failure, or when no case matches a required pattern or one that does is not there.
"""

import argparse
import fnmatch
import sys
from pathlib import Path

from tests.parity.runner import check_case, find_cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="tree of cases")
    parser.add_argument("--require", action="append", default=[], metavar="PATTERN", help="cases that have to pass")
    args = parser.parse_args()
    outcomes = []
    for folder, name in find_cases(args.folder):
        outcome = check_case(folder, name)
        outcomes.append(outcome)
        worst = "" if outcome.status == "not there" else f" (worst {outcome.worst:.3g} x tolerance)"
        print(f"{outcome.status:<9} {name}{worst}", flush=True)
        if outcome.status == "failed":
            print("          " + outcome.text.replace("\n", "\n          "), flush=True)
    unmet = []
    for pattern in args.require:
        matching = [o for o in outcomes if fnmatch.fnmatchcase(o.name, pattern)]
        unmet += [f"{pattern}: no such case"] if not matching else []
        unmet += [f"{pattern}: {o.name} is not there" for o in matching if o.status == "not there"]
    for sentence in unmet:
        print(f"required: {sentence}")
    counts = {status: sum(o.status == status for o in outcomes) for status in ("passed", "failed", "not there")}
    print(", ".join(f"{n} {status}" for status, n in counts.items()))
    return int(bool(counts["failed"] or unmet))


if __name__ == "__main__":
    sys.exit(main())
