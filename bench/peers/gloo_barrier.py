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

MEETINGS, ROUNDS = 50, 6  # as moor-bench: so many in a row are one sample


def worker(rank, n, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=n)
    samples = []
    for i in range(ROUNDS + 1):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(MEETINGS):
            dist.barrier()
        if i:
            samples.append((time.perf_counter() - begin) / MEETINGS * 1e6)
    if rank == 0:
        queue.put(samples)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    n = int(sys.argv[1])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=worker, args=(r, n, port, queue)) for r in range(n)]
    for p in ranks:
        p.start()
    samples = queue.get(timeout=120)
    for p in ranks:
        p.join()
    print(json.dumps(dict(name=f"barrier, {n} processes", what="gloo", unit="us", values=samples)))
