#!/usr/bin/env python3
"""What a condition costs a PUT 2/3 that meets no rival, in three processes.

    conditional_cost.py KVORUM [--rounds N] [--seconds N]

Each request puts 100 bytes under a key of its own; the conditional one says `If-None-Match: *`. Plain, conditional and plain again are
interleaved in each round, on new nodes with --durability always; 64 connections, as fast as it goes and 2,000/s, driven by this script
(scripts/peers.py). Printed are medians, with the least and the greatest, of the CPU time of all nodes per request. Needs Linux and ports
9721 to 9723.
"""

import argparse
import itertools
import os
import tempfile

import nodes
import peers

KINDS = ("plain", "conditional", "plain again")
RATES = (None, 2000)


class Kvorum(peers.Kvorum):
    def __init__(self, binary, work):
        super().__init__(binary, work)
        self.numbers = itertools.count()

    def request(self, operation, key):
        condition = "If-None-Match: *\r\n" if operation == "conditional" else ""
        head = f"PUT /v0/entity?id=new{next(self.numbers)}&replicas=2/3 HTTP/1.1\r\nHost: localhost\r\n{condition}"
        return head.encode() + b"Content-Length: 100\r\n\r\n" + peers.VALUE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvorum")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    args = parser.parse_args()
    figures = {}
    for _ in range(args.rounds):
        for kind in KINDS:
            with tempfile.TemporaryDirectory(prefix="kvorum-conditional-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
                store = Kvorum(args.kvorum, work)
                try:
                    load = peers.Load(store)
                    load.run(kind, None, 2)
                    for rate in RATES:
                        before = nodes.cpu_micros(store.processes)
                        count, seconds = load.run(kind, rate, args.seconds)
                        micros = (nodes.cpu_micros(store.processes) - before) / count
                        figures.setdefault((kind, rate), []).append((micros, count / seconds))
                    load.end()
                finally:
                    nodes.end(store.processes)
    print("| load | " + " | ".join(f"{kind}, µs | requests/s" for kind in KINDS) + " |")
    print("| --- |" + " --- |" * (2 * len(KINDS)))
    for rate in RATES:
        both = [figures[kind, rate] for kind in KINDS]
        cells = [cell for one in both for cell in (peers.shown([micros for micros, _ in one], 1), peers.shown([count for _, count in one]))]
        print(f"| {f'{rate:,}/s' if rate else 'closed loop'} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
