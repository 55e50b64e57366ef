# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the configuration: each a clear error, never a server that runs without saying so."""
import os
from concurrent.futures import ThreadPoolExecutor

from moorlab.scenario import Failure, Group, proves, require
from moorlab.server import ServerError

SERVERLESS = True
GROUP = Group(tp=1, engines=("vllm",))


def refused(lab, name, moor, words, **more):
    try:
        server = lab.new_server(name=f"config-{name}", moor=moor, start_timeout=240, **more).start()
    except ServerError as e:
        text = str(e)
        missing = [w for w in words if w not in text]
        require(not missing, f"the server's error does not name {missing}: {text[-1500:]}")
        return
    server.stop(check=False)
    raise Failure(f"the server started with {moor}")


@proves("Done when: unknown key, wrong type, unreachable directory", "DESIGN: failure")
def check_mistakes_are_named(lab):
    wrong = [("key", {"record": {"arena_byte": 1 << 20}}, ["arena_byte", "arena_bytes"]),
             ("type", {"gate": {"mode": 3}}, ["gate", "mode"]),
             ("dir", {"dir": "/proc/no/such/place"}, ["/proc/no/such/place"])]
    with ThreadPoolExecutor(2) as pool:  # a start is imports, on one core
        for ended in [pool.submit(refused, lab, *one) for one in wrong]:
            ended.result()


@proves("Done when: second server with the same instance name", "SEMANTICS 4.11", "DESIGN: processes", "S1.26")
def check_names_that_are_taken(lab):
    """A live server has "default": who asks for it by name is refused, who does not gets a suffix; the first is not disturbed.
    Neither server is asked for routes, and the second one gives them always."""
    import moor

    with lab.new_server(name="config-first", moor={}, routes=False) as first:
        env = {"MOOR_DIR": first.dir}
        # A server ends with the thread that started it: the one that is to live is started here.
        with ThreadPoolExecutor(1) as pool:
            named = pool.submit(refused, lab, "named", {"instance": "default"}, ["default"], env=env)
            second = lab.new_server(name="config-second", moor={"record": {"always": True}}, routes=False, env=env).start()
        try:
            named.result()
            names = {p.split(os.sep)[0] for p in first.moor_dir_entries()} - {"holds"}
            require(len(names) == 2 and "default" in names, f"instances {names}")
            os.environ["MOOR_DIR"] = first.dir
            for server, name in ((first, "default"), (second, (names - {"default"}).pop())):
                got = server.client().complete([5, 6, 7], 4)
                with moor.attach(name, 10.0).open(got.id, 10.0) as record:
                    require(record.rows == got.rows, f"{name}: {record.rows} rows")
                require((got.raw_routes is not None) == (server is second), f"{name}: the field is {str(got.raw_routes)[:40]}")
        finally:
            second.stop()
