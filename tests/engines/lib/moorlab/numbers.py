# SPDX-License-Identifier: Apache-2.0
"""Find numbers by name in Store.stats(), whatever its nesting is."""


def find(stats, word):
    """All numbers whose name contains `word`, as {dotted name: number}."""
    found = {}

    def walk(value, path):
        if isinstance(value, dict):
            for k, v in value.items():
                walk(v, [*path, str(k)])
        elif isinstance(value, (list, tuple)):
            for i, v in enumerate(value):
                walk(v, [*path, str(i)])
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            names = [p for p in path if not p.isdigit()]
            if names and word in names[-1]:
                found[".".join(path)] = value

    walk(stats, [])
    return found


def total(stats, word):
    """Their sum, None when there is none."""
    found = find(stats, word)
    return sum(found.values()) if found else None
