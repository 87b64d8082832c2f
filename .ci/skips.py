"""Print the duration and the skips of a test run from pytest's JUnit file. The exit code is 1 if a skip has no
reason."""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

NO_REASON = ("", "Skipped", "Skipped:", "unconditional skip")
"""Messages of pytest for a test that is skipped without a reason."""


def main(path: Path) -> int:
    suites = ET.parse(path).getroot().findall("testsuite")
    skips = [(case, skip) for suite in suites for case in suite.iter("testcase") for skip in case.iter("skipped")]
    reasons = Counter(skip.get("message", "").strip() for _, skip in skips)
    tests = sum(int(suite.get("tests", 0)) for suite in suites)
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    print(f"-- {tests} tests in {seconds:.0f} s, {len(skips)} of them skipped:")
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    unexplained = [
        f"{case.get('classname')}::{case.get('name')}"
        for case, skip in skips
        if skip.get("message", "").strip() in NO_REASON
    ]
    for name in unexplained:
        print(f"skipped without a reason: {name}", file=sys.stderr)
    if not tests:
        print(f"{path} has no test", file=sys.stderr)
    return 1 if unexplained or not tests else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
