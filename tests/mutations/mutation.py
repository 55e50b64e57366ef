# SPDX-License-Identifier: Apache-2.0
"""Lines of docs/mutations.md as edits of a source file.

A line is `rule | file: change | test`. A change is one or more edits, separated by `; ` when they belong together:

    s/OLD/NEW/     OLD as it stands in the file, or a regular expression (backslashes as in Python, grep -E or sed)
    `OLD` → `NEW`  OLD as it stands in the file
    OLD → NEW      the same without the quotes
    Ni TEXT        a new line N

with ` in FUNCTION` after it where OLD is there more than once. `¦` stands for `|` where a table would break, white space in OLD stands for any white space, and an empty NEW may be written (deleted)
or (nothing). OLD must be there exactly once, or the line is stale: it says no longer what it breaks. `s/OLD/NEW/g` changes them all.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path


class Stale(Exception):
    """The file is not what the line was written for."""


@dataclass
class Edit:
    old: str
    new: str
    is_sed: bool = False
    every: bool = False
    function: str = ""
    line: int = 0  # insert before it


@dataclass
class Mutation:
    number: int  # of the line
    rule: str
    file: str
    change: str
    test: str
    edits: list = field(default_factory=list)  # Edit
    prose: str = ""  # why it cannot be done by a machine

    def apply(self, text):
        """The mutated text."""
        for edit in self.edits:
            text = _apply(text, edit)
        return text


def read(path):
    """All mutations of the list, those in prose included."""
    found = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        parts = re.match(r"(.+?) \| ([\w./+-]+): (.+) \| (.+)$", line)
        if line.startswith("`") or not parts:
            if line.count(" | ") >= 2 and not line.startswith("`"):
                found.append(Mutation(number, line, "", "", "", prose="no `rule | file: change | test`"))
            continue
        mutation = Mutation(number, *(p.strip() for p in parts.groups()))
        _parse(mutation)
        found.append(mutation)
    return found


def _parse(mutation):
    rest = mutation.change.replace("¦", "|")
    while rest:
        edit, rest = _first_edit(rest)
        if edit is None:
            mutation.prose = f"not an edit: {rest}"
            return
        place = re.match(r" in (\w+)(?:\(\))?(?=;|$)", rest)
        if place:
            edit.function, rest = place[1], rest[place.end() :]
        mutation.edits.append(edit)
        rest = rest.strip()
        if rest and not rest.startswith(";"):
            mutation.prose = f"not an edit: {rest}"
            return
        rest = rest[1:].strip()


def _first_edit(text):
    sed = re.match(r"s(?P<d>[/,#])(?P<old>(?:\\.|(?!(?P=d)).)+)(?P=d)(?P<new>(?:\\.|(?!(?P=d)).)*)(?P=d)(?P<g>g?)", text)
    if sed:
        return Edit(sed["old"], sed["new"], True, bool(sed["g"])), text[sed.end() :]
    insert = re.match(r"(\d+)i (.+)$", text)
    if insert:
        return Edit("", insert[2], line=int(insert[1])), ""
    quoted = re.match(r"`([^`]+)` → (?:`([^`]*)`|(\((?:deleted|nothing)\)))", text)
    if quoted:
        return _literal(quoted[1], quoted[2] if quoted[2] is not None else quoted[3]), text[quoted.end() :]
    plain = re.match(r"([^`→]+?) → ([^→]+?)( in \w+(?:\(\))?)?$", text)
    if plain:
        return _literal(plain[1], plain[2].strip()), plain[3] or ""
    return None, text


def _literal(old, new):
    return Edit(old.replace(r"\|", "|"), "" if new in ("(deleted)", "(nothing)") else new.replace(r"\|", "|"))


def _loose(old):
    """A literal in which white space is any white space."""
    return r"\s+".join(re.escape(word) for word in re.split(" +", old))


def _readings(old, is_sed):
    """What OLD may mean, the strictest reading first."""
    yield re.escape(old)
    yield _loose(old)
    if is_sed:
        plain = re.sub(r"\\([^\w\s])", r"\1", old)
        yield re.escape(plain)
        yield _loose(plain)
        yield old
        # sed's basic expressions: what has a special meaning there needs a backslash, here it needs none
        yield re.sub(r"\\?[(){}|+?]", lambda m: m[0][1:] if len(m[0]) == 2 else "\\" + m[0], old)


def _replacement(new, is_sed):
    if not is_sed:
        return new
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), new)


def _span(text, function):
    """Where a C function's definition begins and ends."""
    if not function:
        return 0, len(text)
    found = re.search(rf"^\w[^\n;]*\b{function}\([^;{{]*\)\s*\{{.*?^\}}", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise Stale(f"no function {function}")
    return found.span()


def _apply(text, edit):
    if edit.line:
        lines = text.splitlines(keepends=True)
        return "".join(lines[: edit.line - 1] + [edit.new + "\n"] + lines[edit.line - 1 :])
    begin, end = _span(text, edit.function)
    most = 0
    for pattern in _readings(edit.old, edit.is_sed):
        try:
            found = [m for m in re.compile(pattern, re.MULTILINE).finditer(text, begin, end) if m[0]]
        except re.error:
            continue
        most = max(most, len(found))
        if len(found) == 1 or (found and edit.every):
            for match in reversed(found):
                text = text[: match.start()] + _replacement(edit.new, edit.is_sed) + text[match.end() :]
            return text
    raise Stale(f"{edit.old!r} is there {most} times" if most else f"{edit.old!r} is not there")
