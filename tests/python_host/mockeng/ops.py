# SPDX-License-Identifier: Apache-2.0


def select_experts(x, k):
    return list(range(x, x + k))


def collect():
    return 0
