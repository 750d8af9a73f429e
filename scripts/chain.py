#!/usr/bin/env python3
"""Conditional writes while nodes die: are the versions of each key a chain?

    scripts/chain.py KVORUM [--nodes 5] [--operations 1000000] [--clients 64] [--keys 64] [--clocks SECONDS] [--partitions]
                            [--seconds 40] [--driver PROGRAM]

Nodes as processes of this machine; clients replace values on conditions (`kvorum bench cas --verify`), in rounds of so many seconds,
until so many conditions have held or failed. Meanwhile, in turn, a node is killed (SIGKILL) and started again, a node is stopped for a
while, and two nodes are stopped at once: with five, a majority is left. With --partitions also: a node is cut off from the others, only
what it sends is lost, only what is sent to it is lost, a minority is cut off together, and two nodes do not reach each other while both
reach the others; clients reach all nodes. That needs root, ip and nft. With --clocks the nodes' clocks are so far ahead and behind, in
turn, by libfaketime. Ends with 1 at the first broken chain. --driver: another program that takes the arguments of `kvorum bench`.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import network
import nodes as shared

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
FAULT_SECONDS = 1.5
# Longer than a fault of a process: the others need a moment to find out that a peer is silent.
PARTITION_SECONDS = 2.5


class Cluster:
    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        self.network = network.Network(arguments.nodes) if arguments.partitions else None
        self.processes = []
        self.kinds = ["killed", "stopped", "two stopped"]
        if self.network:
            self.kinds += ["cut off", "sends lost", "receives lost", "minority cut off", "two cut from each other"]
        self.faults = dict.fromkeys(self.kinds, 0)
        self.is_over = threading.Event()
        self.failure = None
        at = self.network.address if self.network else lambda number: "127.0.0.1"
        self.urls = [f"http://{at(number)}:{18500 + number}" for number in range(arguments.nodes)]

    def start(self, number):
        listen = self.urls[number].removeprefix("http://")
        command = self.network.prefix(number) if self.network else []
        command += [self.arguments.kvorum, "serve", "--listen", listen, "--advertise", self.urls[number]]
        command += ["--cluster", ",".join(self.urls), "--data-dir", f"{self.work}/{number}", "--clock-offset-limit", "2m"]
        # A network of its own: nobody else reaches it.
        command += ["--insecure", "yes"] if self.network else []
        environment = dict(os.environ)
        if self.arguments.clocks:
            offset = [0, self.arguments.clocks, -self.arguments.clocks][number % 3]
            environment |= {"LD_PRELOAD": FAKETIME, "FAKETIME": f"{offset:+}s", "DONT_FAKE_MONOTONIC": "1"}
        with open(f"{self.work}/{number}.log", "ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def start_all(self):
        for number in range(len(self.urls)):
            self.processes.append(self.start(number))
        for url in self.urls:
            shared.wait_until_ready(self.arguments.kvorum, url)

    def disturb(self):
        try:
            turn = 0
            while not self.is_over.wait(0.7):
                kind = self.kinds[turn % len(self.kinds)]
                # Each kind comes to each node.
                self.fault(kind, turn // len(self.kinds) + turn % len(self.kinds))
                self.faults[kind] += 1
                turn += 1
        except OSError as error:
            # Rounds without faults would show nothing.
            self.failure = error

    def fault(self, kind, turn):
        count = len(self.urls)
        one, other = turn % count, (turn + 2) % count
        rest = [number for number in range(count) if number != one]
        if kind == "killed":
            self.processes[one].kill()
            self.processes[one].wait()
            time.sleep(0.3)
            self.processes[one] = self.start(one)
        elif kind in ("stopped", "two stopped"):
            stopped = [one] if kind == "stopped" or count < 5 else [one, other]
            for number in stopped:
                self.processes[number].send_signal(signal.SIGSTOP)
            time.sleep(FAULT_SECONDS)
            for number in stopped:
                self.processes[number].send_signal(signal.SIGCONT)
        else:
            if kind == "minority cut off":
                together = [(one + step) % count for step in range((count - 1) // 2)]
                for number in together:
                    self.network.cut(number, [far for far in range(count) if far not in together])
            elif kind == "two cut from each other":
                self.network.cut(one, [other])
            else:
                self.network.cut(one, rest, is_sent=kind != "receives lost", is_received=kind != "sends lost")
            time.sleep(PARTITION_SECONDS)
            self.network.heal()

    def end(self):
        self.is_over.set()
        shared.end(self.processes)
        if self.network:
            self.network.remove()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvorum")
    for name, default in [("nodes", 5), ("operations", 1_000_000), ("clients", 64), ("keys", 64), ("clocks", 0), ("seconds", 40)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--driver")
    arguments = parser.parse_args()
    driver = [arguments.driver] if arguments.driver else [arguments.kvorum, "bench"]
    totals = {"Succeeded": 0, "Condition failed": 0, "Unknown": 0, "Nothing done": 0}
    begun, rounds = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as work:
        try:
            cluster = Cluster(arguments, work)
        except OSError as error:
            sys.exit(f"no partitions here: {error}")
        disturber = threading.Thread(target=cluster.disturb)
        try:
            cluster.start_all()
            disturber.start()
            while totals["Succeeded"] + totals["Condition failed"] < arguments.operations:
                rounds += 1
                command = [*driver, "cas", "-t1", f"-c{arguments.clients}", f"-d{arguments.seconds}s", "--keys", str(arguments.keys)]
                command += ["--verify", "--seed", str(rounds), *cluster.urls]
                ran = subprocess.run(command, capture_output=True, text=True, check=False)
                for name in totals:
                    found = re.search(rf"^{name} +(\d+)", ran.stdout, re.MULTILINE)
                    totals[name] += int(found.group(1)) if found else 0
                fair = re.search(r"^Slowest client.*", ran.stdout, re.MULTILINE)
                print(f"round {rounds}: {totals} {cluster.faults} {fair.group(0) if fair else ''}", flush=True)
                if ran.returncode != 0:
                    sys.exit(f"{ran.stdout}{ran.stderr}")
                if cluster.failure:
                    sys.exit(f"no more faults: {cluster.failure}")
        finally:
            cluster.is_over.set()
            if disturber.is_alive():
                disturber.join()
            cluster.end()
    print(f"{rounds} rounds in {time.monotonic() - begun:.0f} s: {totals}; {cluster.faults}: every chain is whole")


if __name__ == "__main__":
    main()
