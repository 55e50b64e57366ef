# SPDX-License-Identifier: Apache-2.0


class Scheduler:
    def __init__(self):
        self.freed = []

    def _free_request(self, request, delay_free_blocks=False):
        self.freed.append(request)
        return ("base", request)


class AsyncScheduler(Scheduler):
    def _free_request(self, request, delay_free_blocks=False):
        return ("async", super()._free_request(request, delay_free_blocks))


class PlainScheduler(Scheduler):
    pass
