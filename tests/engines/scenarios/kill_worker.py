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


def kill(lab, rank):
    server = lab.new_server(name=f"kill-rank{rank}").start()
    consumer = None
    try:
        sid = server.proc.pid
        done = load.run(server.client(), load.make_jobs(8, 3, f"k{rank}"), 4)
        require(not done.failed, f"{done.failed}")
        code = ("import moor,sys,time\ns=moor.attach('survivor',10.0)\nr=s.open(sys.argv[1],10.0)\nv=r.segments()\n"
                "print('held',flush=True)\ntime.sleep(120)\n")
        env = dict(os.environ, MOOR_DIR=server.dir, PYTHONPATH=lab.build.pythonpath)
        rid = next(iter(done.done.values())).id
        consumer = subprocess.Popen([sys.executable, "-c", code, rid], env=env, stdout=subprocess.PIPE, text=True)
        require(consumer.stdout.readline().strip() == "held", "the consumer could not open a record")
        flying = load.Load(server.client(20), load.make_jobs(8, 4, f"f{rank}", tokens=(200, 300)), 8).start()
        workers = lab.pids("worker", server)
        require(len(workers) == 2, f"workers: {workers}")
        os.kill(workers[rank], signal.SIGKILL)
        if lab.engine.outlives_worker:
            time.sleep(3)
            server.proc.send_signal(signal.SIGINT)
        eventually(lambda: server.proc.poll() is not None, 60, "the engine ends after a worker's death")
        flying.finish(60)
        require(not procs.wait_gone(sid, 20), f"processes left: {procs.in_session(sid)}")
        require(consumer.poll() is None, f"the consumer died with {consumer.poll()}")
        # the same place, the same name: the next start finds nothing in its way
        again = lab.new_server(name=f"kill-rank{rank}-again")
        again.start_in = server.dir
        again.start()
        try:
            require(again.moor_dir_entries(), "the second server did not use the directory")
            got = again.client().complete([5, 6, 7], 4, "after")
            os.environ["MOOR_DIR"] = server.dir
            import moor

            with moor.attach("survivor", 10.0).open(got.id, 10.0) as record:
                require(record.rows == got.rows, f"{record.rows} rows of {got.rows}")
        finally:
            consumer.kill()
            again.stop()
        require(lab.engine.ends_by_kill or not again.moor_left, f"left in MOOR_DIR: {again.moor_left}")
    finally:
        if consumer:
            consumer.kill()
            consumer.wait()
            consumer.stdout.close()
        server.stop(check=False)


@proves("Done when: kill -9 of one worker")
def check_output_rank(lab):
    kill(lab, 0)


@proves("Done when: kill -9 of one worker")
def check_other_rank(lab):
    kill(lab, 1)
