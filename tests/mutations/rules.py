#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has every rule of docs/rules.md a test that carries its number, and a mutation in docs/mutations.md?

    tests/mutations/rules.py        one line for each rule that lacks one, exit status 1; else how many there are
    tests/mutations/rules.py -v     which tests and how many mutations each rule has

A test carries a rule's number by its name (S1_7_… in C, mock.S1_7_… in ctest) or, in Python, by @proves("S1.7") or in its text. A
function of C counts when it is registered too: a name that appears once is a test that nobody runs.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

from mutation import read

SOURCE = Path(__file__).resolve().parents[2]


def rules():
    text = (SOURCE / "docs" / "rules.md").read_text()
    return re.findall(r"^- \*\*(S\d+\.\d+)\*\* ", text, re.MULTILINE)


def tests():
    """{rule: names of tests}"""
    found = defaultdict(set)
    for path in sorted((SOURCE / "tests").rglob("*.*")):
        if path.suffix not in (".c", ".py", ".txt") or path.is_relative_to(SOURCE / "tests" / "mutations"):
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".c":
            words = Counter(re.findall(r"\bS\d+_\d+_\w+", text))
            for word in (w for w, n in words.items() if n > 1):
                _add(found, word, word)
        elif path.suffix == ".txt":
            for word in re.findall(r"^mock_schedule\((\w+)", text, re.MULTILINE):
                _add(found, word, f"mock.{word}")
        else:
            for rule in re.findall(r"\bS(\d+)\.(\d+)\b", text):
                found["S{}.{}".format(*rule)].add(path.name)
    return found


def _add(found, word, name):
    for section, number in re.findall(r"S(\d+)_(\d+)(?=_)", word + "_"):
        found[f"S{section}.{number}"].add(name)


def mutations():
    """{rule: lines that are edits}"""
    found = Counter()
    for mutation in read(SOURCE / "docs" / "mutations.md"):
        if mutation.prose:
            continue
        for rule in set(re.findall(r"\bS(\d+)[._](\d+)(?!\d)", f"{mutation.rule} {mutation.test}")):
            found["S{}.{}".format(*rule)] += 1
    return found


def main():
    wanted, by_test, by_mutation = rules(), tests(), mutations()
    lacking = 0
    for rule in wanted:
        if "-v" in sys.argv:
            print(f"{rule}: {by_mutation[rule]} mutations; {', '.join(sorted(by_test[rule]))}")
        for what, has in (("test with its number", by_test[rule]), ("mutation", by_mutation[rule])):
            if not has:
                print(f"{rule} has no {what}")
                lacking += 1
    for rule in sorted((set(by_test) | set(by_mutation)) - set(wanted)):
        if "-v" in sys.argv:
            print(f"{rule} is no rule of docs/rules.md: {', '.join(sorted(by_test[rule]))}")
    if not wanted:
        sys.exit("docs/rules.md has no rules")
    if lacking:
        sys.exit(1)
    print(f"{len(wanted)} rules, each with a test and a mutation")


if __name__ == "__main__":
    main()
