# SPDX-License-Identifier: Apache-2.0
"""Callables of every kind that the installer wraps; hooks/engine/selftest.c counts what fires when run() calls each once."""


def function(value):
    return value


class Thing:
    def method(self, value):
        return value

    @staticmethod
    def static(value):
        return value

    @classmethod
    def klass(cls, value):
        return value

    async def coroutine(self, value):
        return value

    async def stream(self, value):
        yield value
        yield value

    def overridden(self, value):
        return value


class Special(Thing):
    def overridden(self, value):
        return super().overridden(value)


def _drive(coroutine):
    """Runs a coroutine that waits for nothing, whether or not an event loop is running here."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("the coroutine waited")


async def _count(stream):
    return len([item async for item in stream])


def run():
    thing = Thing()
    seen = [function(1), thing.method(1), thing.static(value=1), thing.klass(1), _drive(thing.coroutine(1)),
            _drive(_count(thing.stream(value=1))), Special().overridden(1)]
    if seen != [1, 1, 1, 1, 1, 2, 1]:
        raise RuntimeError(f"wrapped callables changed their results: {seen}")
