# SPDX-License-Identifier: Apache-2.0


class Worker:
    def wake_up(self, tags=None):
        return ["worker", tags]


class CPUWorker(Worker):
    def wake_up(self, tags=None):
        return ["cpu"] + super().wake_up(tags)
