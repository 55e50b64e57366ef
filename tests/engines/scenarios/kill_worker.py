# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a worker in the middle of work: the engine ends, its consumers live, and the next start finds nothing in its way.

The instance is asked for by name: a start that took the dead one for alive would be refused."""
import contextlib
import os
import signal
import subprocess
import sys
import time

from moorlab import load, procs
from moorlab.scenario import ALL, Group, eventually, proves, require

GROUP = Group(tp=2, moor={"instance": "default"}, engines=ALL)


@contextlib.contextmanager
def consumer(lab):
    """A process that holds a record of this server, and still lives when the block ends."""
    done = lab.send(8, 4)
    code = ("import moor,sys,time\ns=moor.attach('default',10.0)\nr=s.open(sys.argv[1],10.0)\nv=r.segments()\n"
            "print('held',flush=True)\ntime.sleep(600)\n")
    env = dict(os.environ, MOOR_DIR=lab.server.dir, PYTHONPATH=lab.build.pythonpath)
    process = subprocess.Popen([sys.executable, "-c", code, done[0].id], env=env, stdout=subprocess.PIPE, text=True)
    try:
        require(process.stdout.readline().strip() == "held", "the consumer could not open a record")
        yield
        require(process.poll() is None, f"the consumer died with {process.poll()}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def kill(lab, rank):
    """Ends when the engine has, by itself or, where its HTTP server stays, by a SIGINT."""
    server = lab.server
    rows = lab.number("rows_total")
    flying = load.Load(server.client(20), load.make_jobs(8, 4, f"f{rank}", tokens=(200, 300)), 8).start()
    eventually(lambda: lab.number("rows_total") > rows, 60, "the requests run")
    workers = lab.pids("worker")
    require(len(workers) == 2, f"workers: {workers}")
    os.kill(workers[rank], signal.SIGKILL)
    if lab.engine.outlives_worker:
        time.sleep(3)
        server.proc.send_signal(signal.SIGINT)
    eventually(lambda: not server.is_up(), 60, "the engine ends after a worker's death")
    flying.finish(60)
    require(not procs.wait_gone(server.proc.pid, 20), f"processes left: {procs.in_session(server.proc.pid)}")


def kill_and_restart(lab, rank):
    with consumer(lab):
        kill(lab, rank)
        lab.restart()
        lab.expect_routes(lab.send(4, 2))


@proves("Done when: kill -9 of one worker")
def check_rank_0_which_owns_the_arena(lab):
    kill_and_restart(lab, 0)


@proves("Done when: kill -9 of one worker")
def check_rank_1(lab):
    """On the server that took its place; when the last one ends in order, nothing is left of all three."""
    kill_and_restart(lab, 1)
    lab.detach()
    lab.server.stop()
    left = lab.server.moor_left
    require(lab.engine.ends_by_kill or not left, f"left in MOOR_DIR: {left}")
