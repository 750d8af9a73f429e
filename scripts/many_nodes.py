#!/usr/bin/env python3
"""How long a cluster of many nodes takes to adopt an epoch: `kvorum dev` on this machine.

    scripts/many_nodes.py KVORUM [--nodes 30]

Printed are the time until all nodes are ready, and for each epoch of the first changes (the stores are named, the level is raised, a
member gets the weight 2 in one window) the time from the first node that works with it to the last one. All nodes are asked for their
epoch again and again, which costs this machine something, too.
"""
import argparse
import os
import subprocess
import tempfile
import time

import members_faults
from members import PORT


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVORUM")
    parser.add_argument("--nodes", type=int, default=30)
    arguments = parser.parse_args()
    urls = [f"http://127.0.0.1:{PORT + number}" for number in range(arguments.nodes)]
    with tempfile.TemporaryDirectory(prefix="kvorum-many-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
        words = [arguments.program, "dev", "--nodes", str(arguments.nodes), "--base-port", str(PORT), "--data-dir", work]
        with open(f"{work}/log", "wb") as log:
            node = subprocess.Popen([*words, "--memory-budget", "16MiB"], stdout=log, stderr=log)
        try:
            watch(arguments, node, urls)
        finally:
            node.kill()
            node.wait()


def watch(arguments, node, urls):
    begun, cpu = time.monotonic(), lambda: sum(map(int, open(f"/proc/{node.pid}/stat").read().rsplit(")", 1)[1].split()[11:13])) / 100

    def ordered(*words):
        return subprocess.run([arguments.program, "cluster", *words, "--url", urls[0]], capture_output=True, text=True)

    is_ready = lambda: all(
        subprocess.run([arguments.program, "status", "--node-only", "--quorum", "--url", url], capture_output=True).returncode == 0 for url in urls)
    while not is_ready():
        time.sleep(0.5)
        if time.monotonic() - begun > 300:
            raise SystemExit("the nodes do not get ready")
    resident = next(int(line.split()[1]) for line in open(f"/proc/{node.pid}/status") if line.startswith("VmRSS")) / 1024
    print(f"{arguments.nodes} nodes are ready after {time.monotonic() - begun:.1f} s, CPU {cpu():.1f} s, {resident:.0f} MiB resident", flush=True)
    before, idle = cpu(), time.monotonic()
    time.sleep(5)
    print(f"idle: {(cpu() - before) / (time.monotonic() - idle):.2f} cores")

    for orders in (["plan", "name"], ["plan", "upgrade"], ["plan", "weight", urls[1], "2", "--window", "4096"]):
        end = time.monotonic() + 120
        while (done := ordered(*orders)).returncode != 0:
            if time.monotonic() > end:
                raise SystemExit(f"{orders}: {done.stderr}")
            time.sleep(0.3)
        epoch = members_faults.ask_cluster(PORT)["epoch"]
        used, first, last, ends = cpu(), {}, {}, time.monotonic() + 180
        applying = subprocess.Popen([arguments.program, "cluster", "apply", str(epoch), "--timeout", "20", "--url", urls[0]],
                                    stdout=subprocess.DEVNULL)
        began, is_over = time.monotonic(), False
        while not is_over and time.monotonic() < ends:
            states = [members_faults.ask_cluster(PORT + number) for number in range(arguments.nodes)]
            now = time.monotonic() - began
            for at in {state["epoch"] for state in states}:
                for passed in range(epoch + 1, at + 1):
                    first.setdefault(passed, now)
            for passed in range(epoch + 1, min(state["epoch"] for state in states) + 1):
                last.setdefault(passed, now)
            is_over = min(state["epoch"] for state in states) > epoch and all(state["change"] is None for state in states)
        applying.wait()
        print(f"{' '.join(orders[1:])}: {time.monotonic() - began:.1f} s, CPU {cpu() - used:.1f} s, load {os.getloadavg()[0]:.1f}; " + "; ".join(
            f"epoch {at} seen first after {first[at]:.2f} s, at all nodes after {last.get(at, float('nan')):.2f} s" for at in sorted(first)), flush=True)


if __name__ == "__main__":
    main()
