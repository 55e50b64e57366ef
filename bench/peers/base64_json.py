# SPDX-License-Identifier: Apache-2.0
"""What engines do without Moor: 4,096 tokens' ids as base64 in JSON through a socket to another process, which decodes them
into an array of its own and reads every id.  int32, as SGLang sends them."""
import base64
import json
import os
import socket
import time

import numpy as np

TOKENS, SHAPE = 4096, (48, 8)
ROUNDS = int(os.environ.get("BENCH_REPETITIONS", "9"))


def serve(sock, rows):
    while sock.recv(1):
        body = json.dumps({"meta_info": {"routed_experts": base64.b64encode(rows.tobytes()).decode()}}).encode()
        sock.sendall(len(body).to_bytes(8, "little") + body)


def receive(file):
    size = int.from_bytes(file.read(8), "little")
    text = json.loads(file.read(size))["meta_info"]["routed_experts"]
    return np.frombuffer(base64.b64decode(text), np.int32).reshape(TOKENS, *SHAPE).astype(np.uint8)


rows = np.random.default_rng(0).integers(0, 128, (TOKENS, *SHAPE)).astype(np.int32)
here, there = socket.socketpair()
if not (pid := os.fork()):
    here.close()
    serve(there, rows)
    os._exit(0)
there.close()
samples = []
with here, here.makefile("rb") as file:
    for rep in range(ROUNDS + 2):
        begin = time.perf_counter()
        here.sendall(b"x")
        got = receive(file)
        total = int(got.sum())
        if rep >= 2:
            samples.append((time.perf_counter() - begin) * 1e3)
        assert total == int(rows.sum())
os.waitpid(pid, 0)
print(json.dumps(dict(name="open + read 4,096 tokens, another process", what="base64 + JSON", unit="ms", values=samples)))
