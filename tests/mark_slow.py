"""Writes tests/slow.txt, the tests that `make check` leaves out, from a log of pytest's durations.

python -m pytest -n 2 -m 'not slow and not wide' --durations=0 --durations-min=0.02 > log
python tests/mark_slow.py log
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

LIMIT = 0.5
LIST = Path(__file__).parent / "slow.txt"


def main() -> None:
    seconds: Counter[str] = Counter()
    for line in Path(sys.argv[1]).read_text().splitlines():
        if found := re.match(r"([\d.]+)s (?:call|setup|teardown) +(\S+)", line):
            seconds[found[2]] += float(found[1])
    known = set(LIST.read_text().split()) if LIST.exists() else set()
    slow = {re.sub(r"\[.*", "", name) for name, spent in seconds.items() if spent >= LIMIT}
    LIST.write_text("\n".join(sorted(known | slow)) + "\n")


if __name__ == "__main__":
    main()
