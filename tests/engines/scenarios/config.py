# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the configuration: each a clear error, never a server that runs without saying so."""
from moorlab.scenario import Failure, Group, proves, require
from moorlab.server import ServerError

SERVERLESS = True
GROUP = Group(tp=1, engines=("vllm",))


def refused(lab, name, moor, words, **more):
    try:
        server = lab.new_server(name=f"config-{name}", moor=moor, start_timeout=120, **more).start()
    except ServerError as e:
        text = str(e)
        missing = [w for w in words if w not in text]
        require(not missing, f"the server's error does not name {missing}: {text[-1500:]}")
        return
    server.stop(check=False)
    raise Failure(f"the server started with {moor}")


@proves("Done when: unknown key", "DESIGN: failure")
def check_unknown_key(lab):
    refused(lab, "key", {"record": {"arena_byte": 1 << 20}}, ["arena_byte", "arena_bytes"])


@proves("Done when: wrong type")
def check_wrong_type(lab):
    refused(lab, "type", {"gate": {"mode": 3}}, ["gate", "mode"])


@proves("Done when: unreachable directory")
def check_unreachable_directory(lab):
    refused(lab, "dir", {"dir": "/proc/no/such/place"}, ["/proc/no/such/place"])


@proves("Done when: second server with the same instance name", "SEMANTICS 4.11")
def check_same_name_twice(lab):
    first = lab.new_server(name="config-first", moor={"instance": "same"}).start()
    try:
        refused(lab, "second", {"instance": "same"}, ["same"], env={"MOOR_DIR": first.dir})
        got = first.client().complete([5, 6, 7], 4)
        require(len(got.tokens) == 4, "the first server was disturbed")
    finally:
        first.stop()


@proves("DESIGN: processes")
def check_unnamed_second_server_gets_a_suffix(lab):
    import os

    import moor

    first = lab.new_server(name="config-a", moor={}).start()
    try:
        second = lab.new_server(name="config-b", moor={}, env={"MOOR_DIR": first.dir}).start()
        try:
            names = {p.split(os.sep)[0] for p in first.moor_dir_entries()} - {"holds"}
            require(len(names) == 2 and "default" in names, f"instances {names}")
            os.environ["MOOR_DIR"] = first.dir
            for server, name in ((first, "default"), (second, (names - {"default"}).pop())):
                got = server.client().complete([5, 6, 7], 4)
                with moor.attach(name, 10.0).open(got.id, 10.0) as record:
                    require(record.rows == got.rows, f"{name}: {record.rows} rows")
        finally:
            second.stop()
    finally:
        first.stop()
