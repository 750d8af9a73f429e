#!/usr/bin/env python3
"""What a request costs three nodes, each a process of its own: what users run.

    processes.py AFTER [BEFORE] [--rounds N] [--seconds N] [--only put-closed,get-2000,...]

AFTER and BEFORE are binaries of kvorum. In each round every load runs on AFTER, on AFTER again (A/A) and on BEFORE, one after the
other, so that the spread between equals stands beside each difference. Loads: PUT and GET 2/3 of 100 bytes, 100,000 keys, durable, 64
connections over the three nodes; as fast as it goes, 2,000/s and 10,000/s. The driver is `kvorum bench` of AFTER.

Printed are medians, with the least and the greatest: CPU time of all nodes per request (/proc/PID/task/*/schedstat), requests per second,
and from one more round system calls (strace, at 2,000/s) and allocated bytes (the node's own profile) per request. Needs
Linux and ports 9715 to 9717.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time

import nodes

PORTS = (9715, 9716, 9717)
URLS = [f"http://127.0.0.1:{port}" for port in PORTS]
LOADS = [(operation, rate) for operation in ("put", "get") for rate in (None, 2000, 10000)]


def name_of(load):
    operation, rate = load
    return f"{operation}-{rate or 'closed'}"


def steal_seconds():
    """Time that the machine gave to others, over all processors."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


class Cluster:
    """Three nodes; the driver's binary loads them."""

    def __init__(self, binary, driver, work):
        self.driver = driver
        self.nodes = []
        for port in PORTS:
            data = f"{work}/{port}"
            shutil.rmtree(data, ignore_errors=True)
            words = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", data, "--cluster", ",".join(URLS)]
            self.nodes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for url in URLS:
            nodes.wait_until_ready(self.driver, url)
        self.load("put", None, 3)

    def cpu_micros(self):
        return nodes.cpu_micros(self.nodes)

    def command(self, operation, rate, seconds):
        words = [self.driver, "bench", operation, *URLS, "-t1", "-c64", f"-d{seconds}s", "--keys", "100000"]
        return words + ([f"-R{rate}"] if rate else [])

    def load(self, operation, rate, seconds):
        """Runs a load; returns the number of its requests and how long it took."""
        said = subprocess.run(self.command(operation, rate, seconds), capture_output=True, text=True).stdout
        line = next((line for line in said.splitlines() if " requests in " in line), None)
        if line is None:
            raise SystemExit(f"the driver failed:\n{said}")
        words = line.split()
        failed = next((line for line in said.splitlines() if "Non-2xx" in line), "")
        # Keys that were not written yet were asked for as well.
        absent = failed.split("404: ")[1].split(")")[0].split(",")[0] if "404: " in failed else "0"
        return int(words[0]) + int(absent), float(words[3].rstrip("s,"))

    def end(self):
        nodes.end(self.nodes)


def system_calls(cluster, operation):
    """System calls of all nodes per request, at 2,000 requests a second."""
    if not shutil.which("strace"):
        return None
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as out:
        pids = [word for node in cluster.nodes for word in ("-p", str(node.pid))]
        tracer = subprocess.Popen(["strace", "-f", "-c", "-o", out.name, *pids], stderr=subprocess.DEVNULL)
        time.sleep(1)
        count, _ = cluster.load(operation, 2000, 4)
        tracer.terminate()
        tracer.wait()
        total = [line for line in out.read().splitlines() if line.endswith(" total")]
    return int(total[-1].split()[3 if len(total[-1].split()) > 4 else 2]) / count if total else None


def allocated(cluster, operation):
    """Bytes that all nodes allocate per request, at 2,000 requests a second."""
    bench = subprocess.Popen(cluster.command(operation, 2000, 8), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(1)
    words = [cluster.driver, "profile", "--event", "alloc", "--format", "collapsed", "--seconds", "5", "--url"]
    profiles = [subprocess.Popen([*words, url], stdout=subprocess.PIPE, text=True) for url in URLS]
    stacks = "".join(profile.communicate()[0] for profile in profiles)
    bench.communicate()
    return sum(int(line.rsplit(" ", 1)[1]) for line in stacks.splitlines() if " " in line) / (5 * 2000)


def shown(values, digits=0):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("after")
    parser.add_argument("before", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--only", help="loads by name, with commas")
    args = parser.parse_args()
    loads = [load for load in LOADS if not args.only or name_of(load) in args.only.split(",")]
    binaries = [("after", args.after), ("after again", args.after)] + ([("before", args.before)] if args.before else [])
    figures, counted = {}, {}
    began, steal = time.monotonic(), steal_seconds()
    with tempfile.TemporaryDirectory(prefix="kvorum-processes-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
        for number in range(args.rounds):
            for which, binary in binaries:
                cluster = Cluster(binary, args.after, work)
                try:
                    for operation, rate in loads:
                        before = cluster.cpu_micros()
                        count, seconds = cluster.load(operation, rate, args.seconds)
                        micros = (cluster.cpu_micros() - before) / count
                        figures.setdefault(((operation, rate), which), []).append((micros, count / seconds))
                    if number == 0 and which != "after again":
                        for operation in sorted({operation for operation, _ in loads}):
                            counted[operation, which] = system_calls(cluster, operation), allocated(cluster, operation)
                finally:
                    cluster.end()
    print("| load | " + " | ".join(f"{which}, µs | requests/s" for which, _ in binaries) + " |")
    print("| --- |" + " --- |" * (2 * len(binaries)))
    for load in loads:
        row = []
        for which, _ in binaries:
            both = figures[load, which]
            row += [shown([micros for micros, _ in both], 1), shown([rate for _, rate in both])]
        print(f"| {name_of(load)} | " + " | ".join(row) + " |")
    for (operation, which), (calls, size) in counted.items():
        calls = "not counted (no strace)" if calls is None else f"{calls:.1f}"
        print(f"{which}, {operation} at 2,000/s: {calls} system calls and {size / 1024:.1f} KiB allocated per request")
    took = time.monotonic() - began
    print(f"{args.rounds} rounds, {took:.0f} s; steal {(steal_seconds() - steal) / took:.3f} cores")


if __name__ == "__main__":
    main()
