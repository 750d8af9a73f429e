#!/usr/bin/env python3
"""How long a node takes to join three nodes with 1 GiB each, with the rate limit and without.

    scripts/join_rate.py KVORUM [--mib 1024] [--value 4096] [--rates 64MiB,64GiB] [--window 256]

For each `--repair-rate` a new cluster of processes on this machine: values are put with 3 of 3 copies, then a fourth node joins, without
a load of clients. Printed are the time from `apply` to the end of the change, the bytes that the newcomer stored by the second, the CPU
of each process, and the steal and load of the machine.
"""
import argparse
import os
import subprocess
import tempfile
import time

import members
import nodes as shared
from heal import steal


def run(arguments, rate, work):
    nodes = members.Nodes(arguments.program, work)
    more = ["--repair-rate", rate, "--durability", "os"]
    urls = [nodes.url(number) for number in range(3)]
    try:
        for number in range(3):
            nodes.start(number, ["--cluster", ",".join(urls), *more])
        for number in range(3):
            nodes.until(f"node {number} is ready", lambda number=number: nodes.is_ready(number), 60)
        nodes.cluster(0, "upgrade")
        keys = arguments.mib * (1 << 20) // arguments.value
        fill = [arguments.program, "bench", "get", *urls, "--prefill", "--keys", str(keys), "--value-size", str(arguments.value)]
        subprocess.run([*fill, "-c", "32", "-t", "1", "-d", "100ms"], check=True, stdout=subprocess.DEVNULL)
        nodes.start(3, ["--join", ",".join(urls), *more])
        words = ["plan", "add", nodes.url(3), "--window", str(arguments.window)]
        nodes.until("the change is planned", lambda: nodes.cluster(0, *words, ok=False).returncode == 0, 60)
        plan = nodes.shown(0)["plan"]
        # Flushes of what was put are not the join's.
        time.sleep(10)
        processes = list(nodes.processes.values())
        cpu = [shared.cpu_micros([process]) for process in processes]
        (lost, of), begun = steal(), time.monotonic()
        nodes.cluster(0, "apply", str(plan["on_epoch"]))
        nodes.until("the change ends", lambda: nodes.cluster(0, "wait", "--timeout", "600", ok=False).returncode == 0, 700)
        took = time.monotonic() - begun
        (lost_after, of_after), load = steal(), os.getloadavg()[0]
        cpu = [(shared.cpu_micros([process]) - before) / 1e6 for process, before in zip(processes, cpu)]
        mib = plan["moves"]["copies"] / plan["moves"]["partitions"] * keys * arguments.value / (1 << 20)
        print(f"repair-rate {rate}, window {arguments.window}: {took:.1f} s for {mib:.0f} MiB, {mib / took:.1f} MiB/s; "
              f"{plan['moves']['copies']} copies moved, least {plan['moves']['copies_least']}; {plan['moves']['epochs']} epochs; CPU "
              f"{sum(cpu[:3]):.1f} s of the three, {cpu[3]:.1f} s of the newcomer; "
              f"steal {100 * (lost_after - lost) / (of_after - of):.1f} %, load {load:.1f}", flush=True)
    finally:
        for process in nodes.processes.values():
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVORUM")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--value", type=int, default=4096)
    parser.add_argument("--rates", default="64MiB,64GiB")
    parser.add_argument("--window", type=int, default=256)
    arguments = parser.parse_args()
    for rate in arguments.rates.split(","):
        with tempfile.TemporaryDirectory(prefix="kvorum-join-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
            run(arguments, rate, work)


if __name__ == "__main__":
    main()
