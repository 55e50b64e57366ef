# SPDX-License-Identifier: Apache-2.0
"""broken.py shift|drop|gate|barrier [ENGINE [OPTION…]]: the demo, with these options, must fail when Moor is broken on purpose, and for the right reason."""
import os
import subprocess
import sys

REASON = {
    "shift": ("mismatches",),                # every id is one expert off
    "drop": ("missing",),                    # one layer does not capture
    # weights change under running requests: tokens of no weight set, a forward pass that meets a half-loaded layer, or an
    # update that waits for a rank whose step waits for the other one
    "gate": ("are not greedy under any one weight set", "EngineCore encountered an issue", "in update_weights"),
    "barrier": ("before the trainer let go",),  # the KV cache wakes beside a trainer's memory
}


def main():
    what = sys.argv[1]
    demo = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo.py")
    engine = sys.argv[2] if len(sys.argv) > 2 else "vllm"
    ranks = [] if engine == "vllm" else ["--tp", "1", "--requests", "16"]  # enough to see it, and faster
    got = subprocess.run([sys.executable, demo, "--engine", engine, "--no-overhead", "--broken", what, *ranks, *sys.argv[3:]],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(got.stdout, end="", flush=True)
    if got.returncode == 77:
        return 77
    wrong = [line for line in got.stdout.splitlines() if any(reason in line for reason in REASON[what])]
    if got.returncode != 1 or not wrong:
        print(f"FAIL: with {what} broken the demo ended with {got.returncode} and did not say {' or '.join(REASON[what])!r}")
        return 1
    print(f"ok: with {what} broken the demo fails: {wrong[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
