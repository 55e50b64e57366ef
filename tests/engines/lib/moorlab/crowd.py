# SPDX-License-Identifier: Apache-2.0
"""Very many requests at once from one thread, a socket each: what they cost is the server's, hardly the client's."""
import collections
import json
import os
import selectors
import socket
import statistics
import time

from . import client


class Crowd:
    """`n` requests that are sent, and answered some time."""

    def __init__(self, port, n, path, body, id_of=lambda i: f"crowd-{i}"):
        self.port, self.path, self.body, self.id_of = port, path, body, id_of
        self.answers = collections.Counter()  # status -> how many
        self._wait = selectors.DefaultSelector()
        self._got = {}
        for i in range(n):
            self._send(i)

    def _send(self, i):
        data = json.dumps(self.body).encode()
        head = (f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: {self.id_of(i)}\r\n"
                f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n").encode()
        s = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        s.sendall(head + data)
        s.setblocking(False)
        self._wait.register(s, selectors.EVENT_READ)
        self._got[s] = b""

    @property
    def open(self):
        return len(self._got)

    def gather(self, timeout):
        """Reads answers until all are there, or the time is over: how many are still missing."""
        end = time.monotonic() + timeout
        while self._got and time.monotonic() < end:
            for key, _ in self._wait.select(0.2):
                self._read(key.fileobj)
        return len(self._got)

    def _read(self, s):
        try:
            data = s.recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self._got[s] = (self._got[s] + data)[:64]  # of the answer, the first line is looked at
        if not data:
            first = self._got[s].split()
            self.answers[first[1].decode() if len(first) > 1 else "none"] += 1
            self._close(s)

    def _close(self, s):
        self._wait.unregister(s)
        del self._got[s]
        s.close()

    def leave(self):
        """Everybody goes, answered or not."""
        for s in list(self._got):
            self._close(s)


def cpu_seconds(pid):
    """CPU time of all threads of a process, so far."""
    with open(f"/proc/{pid}/stat") as f:
        after = f.read().rpartition(")")[2].split()
    return (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK")


def watch_health(pid, port, seconds, beside=None):
    """(CPU of the process in cores, /health's times in s) over so many seconds; `beside` is called between the probes."""
    probe, times = client.Http(port, timeout=300.0), []
    probe.get("/health")
    begin, cpu = time.monotonic(), cpu_seconds(pid)
    while time.monotonic() < begin + seconds and (beside is None or beside()):
        asked = time.monotonic()
        probe.get("/health")
        times.append(time.monotonic() - asked)
        time.sleep(0 if beside else 0.1)
    cores = (cpu_seconds(pid) - cpu) / (time.monotonic() - begin)
    probe.close()
    return cores, times


def told(cores, times):
    return f"{cores:.3f} core, /health {1e3 * statistics.median(times):.1f} ms (worst {1e3 * max(times):.1f})"
