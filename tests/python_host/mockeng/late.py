# SPDX-License-Identifier: Apache-2.0
from mockeng.sched import AsyncScheduler
from mockeng.worker import Worker


class LateScheduler(AsyncScheduler):
    def _free_request(self, request, delay_free_blocks=False):
        return ("late", super()._free_request(request, delay_free_blocks))


class LateWorker(Worker):
    def wake_up(self, tags=None):  # does not call super()
        return ["late", tags]
