# SPDX-License-Identifier: Apache-2.0
import functools


class EngineCore:
    def __init__(self, name="core"):
        self.name = name
        self.requests = []

    def add_request(self, request, request_wave: int = 0) -> int:
        """Queue a request."""
        if request == "bad":
            raise ValueError("bad request")
        self.requests.append((request, request_wave))
        return len(self.requests)

    add_request.marker = "kept"

    @staticmethod
    def make(size, *, spare=0):
        return ["slot"] * (size + spare)

    @classmethod
    def from_config(cls, config):
        return cls(config)

    @functools.lru_cache
    def cached(self, key):
        return key * 2

    def step(self, n):
        if n < 0:
            raise IndexError(n)
        if n == 0:
            return []
        return [n] + self.step(n - 1)

    def moved(self):
        return "moved"

    def never_called(self):
        return None

    class Inner:
        def deep(self):
            return "deep"
