# SPDX-License-Identifier: Apache-2.0
import asyncio
import functools


def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner


class AsyncLLM:
    def __init__(self):
        self.log = []

    async def generate(self, prompt, sampling_params, request_id, *, priority=0):
        """Yields what is sent to it, or the next token."""
        try:
            for token in prompt:
                try:
                    sent = yield token
                except KeyError as exc:
                    self.log.append(("caught", exc.args[0]))
                    yield "recovered"
                    continue
                if sent is not None:
                    self.log.append(("sent", sent))
                await asyncio.sleep(0)
                if token == "boom":
                    raise OverflowError("boom")
        finally:
            self.log.append(("closed", request_id))

    async def stream(self, n):
        for i in range(n):
            yield i

    async def sleep(self, level=1):
        await asyncio.sleep(0)
        if level < 0:
            raise ValueError(level)
        return ("asleep", level)

    async def wake_up(self, tags=None):
        await asyncio.sleep(0)
        return ("awake", tags)

    @logged
    async def decorated(self, value):
        await asyncio.sleep(0)
        if value is None:
            raise ValueError("no value")
        return value

    @logged
    async def decorated_stream(self, n):
        for i in range(n):
            yield i

    def hinted(self, value):
        return self.sleep(value)

    @classmethod
    async def class_coroutine(cls, value):
        return cls.__name__, value


class Derived(AsyncLLM):
    async def generate(self, prompt, sampling_params, request_id, *, priority=0):
        async for token in super().generate(prompt, sampling_params, request_id, priority=priority):
            yield ("derived", token)

    async def wake_up(self, tags=None):
        return ("derived", await super().wake_up(tags))
