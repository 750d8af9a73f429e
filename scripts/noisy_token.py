#!/usr/bin/env python3
"""How long a quiet token waits beside a noisy one, and what turns cost where nobody is noisy.

    noisy_token.py AFTER [BEFORE] [--rounds N]

AFTER and BEFORE are binaries of kvorum. One node with one thread; the noisy token has 4,000 connections in a closed loop,
the quiet one asks 5 times a second on one connection. Rounds are interleaved. Needs Linux (/proc), port 9714, and 9,000
descriptors.
"""

import argparse
import resource
import shutil
import statistics
import subprocess
import tempfile
import time

import nodes

URL = "http://127.0.0.1:9714"


class Node:
    """A node with tokens of a noisy and a quiet client."""

    def __init__(self, binary, client, work, limit):
        self.client, self.work = client, work
        shutil.rmtree(f"{work}/data", ignore_errors=True)
        subprocess.run(["rm", "-f", f"{work}/tokens.toml"], check=True)
        for name in ("noisy", "quiet"):
            bound = ["--requests-per-second", str(limit)] if name == "noisy" and limit else []
            words = [client, "token", "create", f"{work}/tokens.toml", "--id", name, "--allow", "read,write", *bound]
            with open(f"{work}/{name}", "wb") as file:
                file.write(subprocess.run(words, capture_output=True, check=True).stdout)
        words = [binary, "serve", "--listen", URL.removeprefix("http://"), "--data-dir", f"{work}/data", "--threads", "1"]
        words += ["--durability", "os", "--auth", "on", "--token-file", f"{work}/tokens.toml"]
        self.node = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        nodes.wait_until_ready(client, URL)
        self.bench("quiet", "put", "-c8", "-R4000", "-d2s").communicate()

    def bench(self, name, work, *words):
        words = [self.client, "bench", work, URL, "-t1", "--keys", "2000", "--token-file", f"{self.work}/{name}", *words]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self):
        nodes.end([self.node])


def figure(said, name, column):
    """A column of the line that begins with `name`."""
    line = next(line for line in said.splitlines() if line.strip().startswith(name))
    return line.split()[column]


def millis(text):
    for unit, factor in (("us", 0.001), ("ms", 1), ("s", 1000)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("after")
    parser.add_argument("before", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    binaries = [("after", args.after)] + ([("before", args.before)] if args.before else [])
    figures = {}
    with tempfile.TemporaryDirectory(prefix="kvorum-noisy-") as work:
        for _ in range(args.rounds):
            for name, binary in binaries:
                for operation in ("get", "put"):
                    for limit in (None, 3000):
                        node = Node(binary, args.after, work, limit)
                        noisy = node.bench("noisy", operation, "-c4000", "-d9s")
                        time.sleep(3)
                        quiet = node.bench("quiet", operation, "-c1", "-R5", "-d5s").communicate()[0]
                        noise = noisy.communicate()[0]
                        node.end()
                        row = figures.setdefault((operation, limit, name), ([], []))
                        row[0].append(millis(figure(quiet, "Latency", 1)))
                        row[1].append(float(figure(noise, "Requests/sec", 1)))
                node = Node(binary, args.after, work, None)
                before = nodes.cpu_micros([node.node])
                said = node.bench("quiet", "get", "-c64", "-d5s").communicate()[0]
                count = int(next(line for line in said.splitlines() if " requests in " in line).split()[0])
                figures.setdefault(("alone", None, name), ([], []))[0].append((nodes.cpu_micros([node.node]) - before) / count)
                node.end()
    for (operation, limit, name), (first, second) in sorted(figures.items(), key=str):
        spread = f"{statistics.median(first):.1f} ({min(first):.1f} to {max(first):.1f})"
        if operation == "alone":
            print(f"{name}: GET, 64 connections of one token: {spread} us of CPU a request")
        else:
            print(f"{name}: {operation}, limit {limit}: quiet waits {spread} ms; noisy succeeds {statistics.median(second):,.0f}/s")


if __name__ == "__main__":
    main()
