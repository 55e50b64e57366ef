# SPDX-License-Identifier: Apache-2.0


class Perf:
    def method(self, x):
        return x

    def plain_method(self, x):
        return x

    async def stream(self, n):
        for i in range(n):
            yield i

    async def plain_stream(self, n):
        for i in range(n):
            yield i

    async def coroutine(self, x):
        return x

    async def plain_coroutine(self, x):
        return x
