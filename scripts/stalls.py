#!/usr/bin/env python3
"""The worst stall of a paced load on three processes, and how long a node with a full log takes to start again.

    scripts/stalls.py KVORUM paced [--rounds 3] [--rate 4000] [--seconds 60]
    scripts/stalls.py KVORUM restart [--rounds 3] [--value 100]

paced: 4,000 PUT/s and 4,000 GET/s of 1 KiB at the default quorum, with `--durability always`. For each round the percentiles and the
longest time from when an operation was due to its answer, the steal, and the load of the machine, which should be idle otherwise.

restart: one node, `--durability always`. Values are put until the journals do not get larger any more, then the node is killed (SIGKILL)
while they are nearly at their largest, and started again: the time to its first answer to a GET of a stored key, and to a 200 of /v0/status.
"""
import argparse
import http.client
import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.request

import members
import nodes as shared
from heal import steal


def paced(arguments, work):
    nodes = members.Nodes(arguments.program, work)
    urls = [nodes.url(number) for number in range(3)]
    try:
        for number in range(3):
            nodes.start(number, ["--cluster", ",".join(urls)])
        for url in urls:
            shared.wait_until_ready(arguments.program, url)
        bench = [arguments.program, "bench", "mixed", *urls, "-t", "1", "-c", str(arguments.connections), "--keys", "100000", "--value-size", "1024"]
        bench += ["--put-rate", str(arguments.rate), "--get-rate", str(arguments.rate), "--json", f"{work}/report"]
        for number in range(arguments.rounds):
            (lost, of), cpu = steal(), shared.cpu_micros(nodes.processes.values())
            words = [*bench, "-d", f"{arguments.seconds}s"] + ([] if number else ["--prefill"])
            subprocess.run(words, check=False, stdout=subprocess.DEVNULL)
            (lost_after, of_after), load = steal(), os.getloadavg()[0]
            cpu = (shared.cpu_micros(nodes.processes.values()) - cpu) / 1e6
            with open(f"{work}/report", encoding="utf-8") as file:
                report = json.load(file)
            for stream in report["streams"]:
                nanos, late = stream["latency"]["nanos"], stream["driver_lag"]["nanos"]
                print(f"round {number + 1}, {stream['name']}: {stream['requests_per_second']:.0f}/s, p50 {nanos['p50'] / 1e6:.2f}, "
                      f"p99 {nanos['p99'] / 1e6:.1f}, p99.9 {nanos['p99.9'] / 1e6:.1f}, longest {stream['latency']['max'] / 1e6:.1f} ms "
                      f"(the driver sent up to {late['p100'] / 1e6:.1f} ms late); failures {stream['failures'] or 'none'}")
            print(f"round {number + 1}: CPU of the nodes {cpu:.0f} s, steal {100 * (lost_after - lost) / (of_after - of):.1f} %, "
                  f"load {load:.1f}", flush=True)
    finally:
        end(nodes)


def end(nodes):
    for process in nodes.processes.values():
        process.kill()
        process.wait()


def journal_bytes(url):
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("kvorum_journal_bytes "))


def status_of(host, path):
    connection = http.client.HTTPConnection("127.0.0.1", host, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return None
    finally:
        connection.close()


def restart(arguments, work):
    nodes = members.Nodes(arguments.program, work)
    url, port = nodes.url(0), members.PORT
    try:
        nodes.start(0, ["--durability", "always"])
        shared.wait_until_ready(arguments.program, url)
        if status_of(port, "/v0/entity?id=first") == 404:
            urllib.request.urlopen(urllib.request.Request(url + "/v0/entity?id=first", data=b"1", method="PUT"), timeout=10).close()
        for number in range(arguments.rounds):
            put = [arguments.program, "bench", "put", url, "-t", "1", "-c", "64", "-d", "600s", "--keys", "10000000"]
            load = subprocess.Popen([*put, "--value-size", str(arguments.value), "--seed", str(number + 1)],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # The journals grow until the oldest memtable is flushed, then some go: killed is near the most that was seen in 60 s.
            most, begun, now = 0, time.monotonic(), 0
            while time.monotonic() - begun < 60 or now < 0.97 * most:
                now = journal_bytes(url)
                most = max(most, now)
                if time.monotonic() - begun > 150:
                    break
                time.sleep(0.05)
            nodes.kill(0)
            load.kill()
            load.wait()
            (lost, of), begun = steal(), time.monotonic()
            nodes.start(0)
            answered = ready = None
            while not (answered and ready):
                answered = answered or (status_of(port, "/v0/entity?id=first") == 200 and time.monotonic() - begun)
                ready = ready or (status_of(port, "/v0/status") == 200 and time.monotonic() - begun)
                time.sleep(0.005)
            lost_after, of_after = steal()
            print(f"round {number + 1}: journals of {now / (1 << 20):.0f} MiB (at most {most / (1 << 20):.0f} seen); first answer after "
                  f"{answered:.2f} s, ready after {ready:.2f} s; steal {100 * (lost_after - lost) / max(of_after - of, 1e-9):.1f} %, "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        end(nodes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVORUM")
    parser.add_argument("what", choices=("paced", "restart"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=4000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--value", type=int, default=100)
    parser.add_argument("--connections", type=int, default=512)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvorum-stalls-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
        {"paced": paced, "restart": restart}[arguments.what](arguments, work)


if __name__ == "__main__":
    main()
