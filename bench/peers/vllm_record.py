# SPDX-License-Identifier: Apache-2.0
"""vLLM's own recorder, driven as its worker does: RoutedExpertsBuffer.capture for each request, publish_routed_experts,
release_block, with the background store behind.  Prints samples as moor-bench does.  Shape 48 x 8, u8.

Its time is CPU time of both of its threads: the store's thread takes the same cores from the engine."""
import json
import os
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
import numpy as np
from vllm.distributed.aux_output_connector.routed_experts import (
    RoutedExpertsBuffer, materialize_routed_experts, publish_routed_experts, routed_experts_keys)
from vllm.distributed.aux_output_connector.store import BackgroundBlockObjectStore, BlockObjectStore

REQUESTS, STEPS, BLOCK, SHAPE, DTYPE = 256, 200, 16, (48, 8), np.dtype("uint8")
ROUNDS = int(os.environ.get("BENCH_REPETITIONS", "9")) // 3 + 1
BLOCK_BYTES = BLOCK * SHAPE[0] * SHAPE[1]


def show(name, what, unit, values):
    print(json.dumps(dict(name=name, what=what, unit=unit, values=values)), flush=True)


def hashes(n, seed):
    raw = np.random.default_rng(seed).bytes(32 * n)
    return [raw[i * 32:i * 32 + 32] for i in range(n)]


def new_store(blocks):
    return BackgroundBlockObjectStore(BlockObjectStore(max_bytes=BLOCK_BYTES * blocks, object_nbytes=BLOCK_BYTES),
                                      max_pending_batches=2 * REQUESTS)


def publish(store, buffer, keys, done):
    publish_routed_experts(store, batches=[(keys, done)], block_size=BLOCK, retain_keys=keys)
    for _, rows in done:
        buffer.release_block(rows)


def step(store, buffer, ids, keys, hashed, position):
    fresh = []
    for r in range(REQUESTS):  # a block's hash is known just before its last row is captured
        if position[r] % BLOCK == BLOCK - 1:
            key = routed_experts_keys(hashed[r][position[r] // BLOCK:position[r] // BLOCK + 1], "s")
            keys[r].extend(key)
            fresh.extend(key)
    if fresh:
        publish_routed_experts(store, batches=(), block_size=BLOCK, retain_keys=fresh)
    ready = []
    for r in range(REQUESTS):
        done = buffer.capture(r, position[r], ids[r:r + 1])
        position[r] += 1
        if done:
            ready.append((keys[r], done))
    if ready:
        publish_routed_experts(store, batches=ready, block_size=BLOCK)
        for _, blocks in ready:
            for _, rows in blocks:
                buffer.release_block(rows)


def decode():
    per = (2 * BLOCK + STEPS) // BLOCK + 2
    ids = np.random.default_rng(0).integers(0, 120, (REQUESTS, *SHAPE)).astype(DTYPE)
    store, samples = new_store(REQUESTS * per + 64), []
    for round_ in range(ROUNDS + 1):  # round 0 brings the pages
        buffer = RoutedExpertsBuffer(DTYPE, SHAPE, BLOCK, REQUESTS, 2048, 2)
        hashed = [hashes(per, round_ * 1000 + r) for r in range(REQUESTS)]
        keys, position = [], []
        for r in range(REQUESTS):
            start = BLOCK + r % BLOCK
            keys.append(routed_experts_keys(hashed[r][:1], "s"))
            publish(store, buffer, keys[r], buffer.capture(r, 0, np.zeros((start, *SHAPE), DTYPE)))
            position.append(start)
        store._queue.join()
        begin = time.process_time()
        for s in range(STEPS):
            ids[:, 0, 0] = s & 63
            step(store, buffer, ids, keys, hashed, position)
        store._queue.join()
        if round_:
            samples.append((time.process_time() - begin) / STEPS * 1e6)
        got = materialize_routed_experts(store, keys[0], shape_per_token=SHAPE, dtype=DTYPE)[BLOCK:, 0, 0]
        assert len(got) and (got == np.arange(len(got)) % 64).all(), "vLLM's recorded rows are wrong"
        for r in range(REQUESTS):
            publish_routed_experts(store, batches=(), block_size=BLOCK, release_keys=keys[r])
        store._queue.join()
    store.close()
    for source in ("decode step, 256 requests, 48x8 u8", "the same, from ids of one byte"):
        show(source, "vLLM recorder, CPU of both threads", "us", samples)


def bulk(rows, name, read):
    blocks = rows // BLOCK
    store = new_store(blocks * 2)
    data = np.random.default_rng(1).integers(0, 120, (rows, *SHAPE)).astype(DTYPE)
    ingest, materialise = [], []
    for rep in range(4 * ROUNDS):
        buffer = RoutedExpertsBuffer(DTYPE, SHAPE, BLOCK, 8, rows, 2)
        keys = routed_experts_keys(hashes(blocks, rep), "p")
        begin = time.perf_counter()
        done = buffer.capture("p", 0, data)
        publish_routed_experts(store, batches=[(keys, done)], block_size=BLOCK)
        for _, block in done:
            buffer.release_block(block)
        store._queue.join()
        middle = time.perf_counter()
        got = materialize_routed_experts(store, keys, shape_per_token=SHAPE, dtype=DTYPE) if read else data
        end = time.perf_counter()
        assert got.shape == data.shape and (got[-1] == data[-1]).all()
        if rep >= 3:
            ingest.append((middle - begin) * 1e3)
            materialise.append((end - middle) * 1e3)
    store.close()
    show(name, "vLLM recorder" if not read else "vLLM materialize, same process", "ms", materialise if read else ingest)


decode()
bulk(8192, "prefill of 8,192 rows", False)
bulk(4096, "open + read 4,096 tokens, another process", True)
