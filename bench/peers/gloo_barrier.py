# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's gloo barrier between N local processes: gloo_barrier.py N"""
import json
import multiprocessing
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

MEETINGS = 150  # as moor-bench: ranks come one after another; from the last arrival to the last leaving


def worker(rank, n, port, align, arrived, left):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=n)
    for i in range(MEETINGS):
        align.wait()
        time.sleep(0.002 + (rank * 7 + i * 13) % 5 * 0.0001)
        arrived[i * n + rank] = time.monotonic()
        dist.barrier()
        left[i * n + rank] = time.monotonic()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    n = int(sys.argv[1])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("fork")
    align = context.Barrier(n)
    arrived, left = context.Array("d", MEETINGS * n, lock=False), context.Array("d", MEETINGS * n, lock=False)
    ranks = [context.Process(target=worker, args=(r, n, port, align, arrived, left)) for r in range(n)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join(120)
        if p.exitcode:
            sys.exit(f"a rank ended with {p.exitcode}")
    samples = [(max(left[i * n:i * n + n]) - max(arrived[i * n:i * n + n])) * 1e6 for i in range(MEETINGS // 10, MEETINGS)]
    print(json.dumps(dict(name=f"barrier, {n} processes", what="gloo", unit="us", values=samples)))
