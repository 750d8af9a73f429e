#!/usr/bin/env python3
"""What clients feel of a backup: the latencies of an open-loop load without a backup and beside one.

    backup_beside.py BINARY [--rounds N] [--seconds N] [--rps N] [--rate MIB] [--mib N]

Three nodes of this machine, filled with values of 1 KiB. Rounds are interleaved; each backup goes into an empty folder, so it reads
everything, and begins anew until the load ends. Prints what share of the processors another guest had (steal) in each round.
Needs Linux (/proc), and the ports 9731 to 9733.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import tempfile

import nodes

URLS = [f"http://127.0.0.1:{port}" for port in (9731, 9732, 9733)]


def steal():
    """Stolen and all time of the processors so far, in ticks."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def millis(text):
    for unit, factor in (("us", 0.001), ("ms", 1), ("s", 1000)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


def percentiles(said):
    """p50 and p99 in milliseconds of GET and PUT."""
    rows = {}
    for operation in ("get", "put"):
        line = re.search(rf"^ +{operation}: .*p50 (\S+), p99 (\S+),", said, re.MULTILINE)
        if not line:
            raise SystemExit(f"the load failed:\n{said}")
        rows[operation] = [millis(line[1]), millis(line[2])]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rps", type=int, default=500)
    parser.add_argument("--rate", type=int, default=16)
    parser.add_argument("--mib", type=int, default=128)
    args = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory(prefix="kvorum-beside-") as work:
        started = []
        for at, url in enumerate(URLS):
            words = [args.binary, "serve", "--listen", url.removeprefix("http://"), "--data-dir", f"{work}/{at}"]
            words += ["--cluster", ",".join(URLS), "--memory-budget", "64MiB"]
            started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        nodes.wait_until_ready(args.binary, URLS[0])
        keys = str(args.mib << 10)

        def bench(*words):
            command = [args.binary, "bench", "mixed", *URLS, "-t1", "--keys", keys, "--value-size", "1024", *words]
            return subprocess.run(command, capture_output=True, text=True).stdout

        bench("-c64", "-R10", "-d1s", "--prefill")
        for _ in range(args.rounds):
            for name in ("alone", "beside"):
                before, count = steal(), 0
                loop = None
                if name == "beside":
                    # One backup after the other, as long as the load goes on. The last one ends by itself: a cut of a killed one
                    # would keep the next round's backup waiting.
                    folder, flag = f"{work}/backups", f"{work}/goes-on"
                    open(flag, "w").close()
                    line = (f"while [ -e {flag} ]; do rm -rf {folder}; "
                            f"{args.binary} backup create {folder} --url {URLS[0]} --rate {args.rate} || exit; done")
                    loop = subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, text=True)
                said = bench("-c32", f"-R{args.rps}", f"-d{args.seconds}s")
                after = steal()
                if loop:
                    os.remove(flag)
                    count = loop.communicate()[0].count("backup ")
                    shutil.rmtree(f"{work}/backups", ignore_errors=True)
                stolen, all_ticks = (now - then for now, then in zip(after, before))
                rows = percentiles(said)
                shown = ", ".join(f"{operation} p50 {p50:.2f} p99 {p99:.2f} ms" for operation, (p50, p99) in rows.items())
                print(f"{name:6} {shown}, steal {100 * stolen / all_ticks:.1f} %"
                      + (f", {count} whole backups" if loop else ""), flush=True)
                for operation, row in rows.items():
                    figures.setdefault((operation, name), []).append(row)
        nodes.end(started)
    for (operation, name), rows in sorted(figures.items()):
        for at, label in enumerate(("p50", "p99")):
            column = [row[at] for row in rows]
            print(f"{operation} {name}: {label} {statistics.median(column):.2f} ms ({min(column):.2f} to {max(column):.2f})")


if __name__ == "__main__":
    main()
