# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a worker in the middle of work: the engine ends, its consumers live, and the next start finds nothing in its way."""
import os
import signal
import subprocess
import sys
import time

from moorlab import load, procs
from moorlab.scenario import ALL, Group, eventually, proves, require

SERVERLESS = True
GROUP = Group(tp=2, moor={"instance": "survivor"}, engines=ALL)


class Victim:
    """A server, a consumer that holds one of its records, and the kill -9 of one worker with requests in flight."""

    def __init__(self, lab, server):
        self.lab, self.server, self.consumer = lab, server, None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.consumer:
            self.consumer.kill()
            self.consumer.wait()
            self.consumer.stdout.close()
        self.server.stop(check=False)

    def hold_a_record(self):
        done = load.run(self.server.client(), load.make_jobs(8, 3, "k"), 4)
        require(not done.failed, f"{done.failed}")
        code = ("import moor,sys,time\ns=moor.attach('survivor',10.0)\nr=s.open(sys.argv[1],10.0)\nv=r.segments()\n"
                "print('held',flush=True)\ntime.sleep(600)\n")
        env = dict(os.environ, MOOR_DIR=self.server.dir, PYTHONPATH=self.lab.build.pythonpath)
        rid = next(iter(done.done.values())).id
        self.consumer = subprocess.Popen([sys.executable, "-c", code, rid], env=env, stdout=subprocess.PIPE, text=True)
        require(self.consumer.stdout.readline().strip() == "held", "the consumer could not open a record")

    def kill(self, rank):
        sid = self.server.proc.pid
        flying = load.Load(self.server.client(20), load.make_jobs(8, 4, f"f{rank}", tokens=(200, 300)), 8).start()
        workers = self.lab.pids("worker", self.server)
        require(len(workers) == 2, f"workers: {workers}")
        os.kill(workers[rank], signal.SIGKILL)
        if self.lab.engine.outlives_worker:
            time.sleep(3)
            self.server.proc.send_signal(signal.SIGINT)
        eventually(lambda: self.server.proc.poll() is not None, 60, "the engine ends after a worker's death")
        flying.finish(60)
        require(not procs.wait_gone(sid, 20), f"processes left: {procs.in_session(sid)}")
        require(self.consumer.poll() is None, f"the consumer died with {self.consumer.poll()}")


def use(lab, server):
    """The same place, the same name: the start found nothing in its way."""
    import moor

    require(server.moor_dir_entries(), "the next server did not use the directory")
    got = server.client().complete([5, 6, 7], 4, "after")
    os.environ["MOOR_DIR"] = server.dir
    with moor.attach("survivor", 10.0).open(got.id, 10.0) as record:
        require(record.rows == got.rows, f"{record.rows} rows of {got.rows}")


@proves("Done when: kill -9 of one worker")
def check_either_rank(lab):
    """The rank that owns the arena, then, on the server that took its place, the other one."""
    with Victim(lab, lab.new_server(name="kill-rank0").start()) as first:
        def next_server(name):
            server = lab.new_server(name=name)
            server.start_in = first.server.dir
            return server.start()

        first.hold_a_record()
        first.kill(0)
        with Victim(lab, next_server("kill-rank1")) as second:
            use(lab, second.server)
            second.hold_a_record()
            second.kill(1)
            last = next_server("kill-after")
            try:
                use(lab, last)
            finally:
                for victim in (first, second):
                    victim.consumer.kill()
                last.stop()
        require(lab.engine.ends_by_kill or not last.moor_left, f"left in MOOR_DIR: {last.moor_left}")
