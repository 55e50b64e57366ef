# SPDX-License-Identifier: Apache-2.0
"""Session tries in Python: dictionaries of edges that are never split, walked edge by edge (the longest one that the rest of the key
begins with). Written for this comparison, with the observable rules of docs/decisions.md, "The trace trie"; values are small dicts that
are walked for references at release, as a trace store in Python has to.

Two of them. "dict trie" cuts the text after each edge and recurses, which is the way it is usually written. "dict trie, by offsets" is
what is left when that is avoided: no copy of the text, no recursion, one edge looked at before all."""
import json
import sys
import time

SESSIONS, TURNS, REPETITIONS = 10_000, 8, 5


class Node:
    __slots__ = ("value", "parent", "children", "created")

    def __init__(self, parent):
        self.value, self.parent, self.children, self.created = None, parent, {}, time.time()


def walk(value, seen):
    """Whatever is to be freed in a value."""
    if isinstance(value, dict):
        for item in value.values():
            walk(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            walk(item, seen)


class Trie:
    def __init__(self):
        self.root, self.old = Node(None), []

    @staticmethod
    def edge(node, text):
        best = ""
        for edge in node.children:
            if text.startswith(edge) and len(edge) > len(best):
                best = edge
        return best

    def insert(self, key, value):
        node = self.root
        while key:
            edge = self.edge(node, key)
            if not edge:
                node.children[key] = child = Node(node)
                node = child
                break
            node, key = node.children[edge], key[len(edge):]
        if node.value is not None:
            self.old.append(node.value)
        node.value = value

    def search(self, text):
        node, path, last = self.root, [], 0
        while text:
            edge = self.edge(node, text)
            if not edge:
                break
            node, text = node.children[edge], text[len(edge):]
            path.append(edge)
            if node.value is not None:
                last = len(path)
        return "".join(path[:last])

    def keys(self):
        out = []

        def below(node, path):
            if node.value is not None:
                out.append("".join(path))
            for edge, child in node.children.items():
                below(child, path + [edge])

        below(self.root, [])
        return out

    def release_key(self, key):
        node, path = self.root, []
        while key:
            edge = self.edge(node, key)
            if not edge:
                return
            path.append((node, edge))
            node, key = node.children[edge], key[len(edge):]
        walk(node.value, set())
        node.value = None
        for parent, edge in reversed(path):
            child = parent.children[edge]
            if child.value is not None or child.children:
                break
            del parent.children[edge]

    def release(self):
        seen = set()

        def below(node):
            for child in node.children.values():
                below(child)
            if node.value is not None:
                walk(node.value, seen)
                node.value = None
            node.children.clear()

        for value in self.old:
            walk(value, seen)
        self.old.clear()
        below(self.root)


class OffsetTrie(Trie):
    @staticmethod
    def step(node, text, at):
        children = node.children
        if len(children) == 1:
            (edge,) = children
            return edge if text.startswith(edge, at) else ""
        best = ""
        for edge in children:
            if len(edge) > len(best) and text.startswith(edge, at):
                best = edge
        return best

    def insert(self, key, value):
        node, at, end, step = self.root, 0, len(key), self.step
        while at < end:
            edge = step(node, key, at)
            if not edge:
                node.children[key[at:]] = child = Node(node)
                node = child
                break
            node = node.children[edge]
            at += len(edge)
        if node.value is not None:
            self.old.append(node.value)
        node.value = value

    def search(self, text):
        node, at, last, end, step = self.root, 0, 0, len(text), self.step
        while at < end:
            edge = step(node, text, at)
            if not edge:
                break
            node = node.children[edge]
            at += len(edge)
            if node.value is not None:
                last = at
        return text[:last]

    def keys(self):
        out, todo = [], [("", self.root)]
        while todo:
            key, node = todo.pop()
            if node.value is not None:
                out.append(key)
            todo.extend((key + edge, child) for edge, child in reversed(node.children.items()))
        return out

    def release(self):
        seen, order, todo = set(), [], [self.root]
        while todo:
            node = todo.pop()
            order.append(node)
            todo.extend(node.children.values())
        for node in reversed(order):
            if node.value is not None:
                walk(node.value, seen)
                node.value = None
            node.children.clear()


def conversation(turns, characters):
    parts = ["%06d" % i + "t" * (characters - 6) for i in range(turns)]
    keys, text = [], ""
    for part in parts:
        text += part
        keys.append(text)
    return keys


def emit(what, name, values):
    print(json.dumps({"name": f"trie, {name}", "what": what, "unit": "us", "values": values}), flush=True)


def timed(call):
    """CPU time: one thread that never waits, on a machine that others use, too."""
    start = time.process_time()
    result = call()
    return (time.process_time() - start) * 1e6, result


def chain(cls, what, depth, characters, repetitions):
    keys = conversation(depth, characters)
    cases = {case: [] for case in ("insert all", "search the longest", "keys", "release a leaf", "release all")}
    for _ in range(repetitions):
        trie = cls()
        cases["insert all"].append(timed(lambda: [trie.insert(key, {"i": 1}) for key in keys])[0])
        us, found = timed(lambda: trie.search(keys[-1]))
        assert found == keys[-1]
        cases["search the longest"].append(us)
        us, listed = timed(trie.keys)
        assert listed == keys
        cases["keys"].append(us)
        cases["release a leaf"].append(timed(lambda: trie.release_key(keys[-1]))[0])
        cases["release all"].append(timed(trie.release)[0])
    for case, values in cases.items():
        emit(what, f"chain of {depth} × {characters} characters: {case}", values)


def sessions(cls, what):
    keys = conversation(TURNS, 512)
    cases = {case: [] for case in ("insert", "search", "keys", "release")}
    for repetition in range(REPETITIONS):
        ids, store = [f"{repetition}-{i:08d}" for i in range(SESSIONS)], {}

        def insert_all():
            for id in ids:
                trie = store[id] = cls()
                for key in keys:
                    trie.insert(key, {"i": 1})

        cases["insert"].append(timed(insert_all)[0] / SESSIONS / TURNS)
        cases["search"].append(timed(lambda: [store[id].search(keys[-1]) for id in ids])[0] / SESSIONS)
        cases["keys"].append(timed(lambda: [store[id].keys() for id in ids])[0] / SESSIONS)
        cases["release"].append(timed(lambda: [store.pop(id).release() for id in ids])[0] / SESSIONS)
    for case, values in cases.items():
        emit(what, f"10,000 sessions × 8 turns × 512 characters: {case}", values)


if __name__ == "__main__":
    sys.setrecursionlimit(20_000)
    for cls, what in ((Trie, "dict trie"), (OffsetTrie, "dict trie, by offsets")):
        chain(cls, what, 100, 32, REPETITIONS)
        chain(cls, what, 1000, 32, 3)
        chain(cls, what, 100, 1024, REPETITIONS)
        sessions(cls, what)
