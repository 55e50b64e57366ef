# SPDX-License-Identifier: Apache-2.0
"""What a server's process tree is, read from /proc.  A server is started as the
leader of a session of its own; whoever is in that session belongs to it."""
import os
import time


def in_session(sid):
    """{pid: command line} of the live (not zombie) processes of session `sid`."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as f:
                stat = f.read()
            after = stat[stat.rindex(")") + 2:].split()
            if int(after[3]) != sid or after[0] in "ZX":
                continue
            with open(f"/proc/{name}/cmdline", "rb") as f:
                found[int(name)] = f.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except (OSError, ValueError):
            continue  # gone meanwhile
    return found


def wait_gone(sid, timeout):
    """Wait until the session is empty; returns what is left at the deadline."""
    end = time.monotonic() + timeout
    while True:
        left = in_session(sid)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def rss_bytes(pid):
    try:
        with open(f"/proc/{pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
