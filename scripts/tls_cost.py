#!/usr/bin/env python3
"""What TLS costs: CPU time of all nodes per request, without and with it, a handshake, and rotations under load.

    tls_cost.py AFTER [BEFORE] [--rounds N] [--rotations N]

AFTER and BEFORE are binaries of kvorum; BEFORE need not know TLS. Each round starts every configuration anew, AFTER without TLS
twice, so that the spread between equals is seen. Needs Linux (/proc), and ports 9711 to 9713.
"""

import argparse
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import tempfile
import time

import nodes

PORTS = (9711, 9712, 9713)


class Cluster:
    """Nodes on this machine, one thread each."""

    def __init__(self, binary, is_secure, ports, work, client):
        self.is_secure, self.ports = is_secure, ports
        scheme = "https" if is_secure else "http"
        self.urls = [f"{scheme}://127.0.0.1:{port}" for port in ports]
        self.ca = ["--ca", f"{work}/tls/nodes-ca.pem"] if is_secure else []
        self.client = client
        self.nodes = []
        for port in ports:
            data = f"{work}/{port}"
            shutil.rmtree(data, ignore_errors=True)
            words = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", data, "--threads", "1", "--durability", "os"]
            if len(ports) > 1:
                words += ["--cluster", ",".join(self.urls)]
            if is_secure:
                own = f"{work}/tls/node-127.0.0.1-{port}"
                words += ["--tls-cert", f"{own}.pem", "--tls-key", f"{own}.key"]
                if len(ports) > 1:
                    words += ["--peer-ca", f"{work}/tls/nodes-ca.pem"]
            self.nodes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for url in self.urls:
            nodes.wait_until_ready(self.client, url, *self.ca)

    def cpu_micros(self):
        return nodes.cpu_micros(self.nodes)

    def bench(self, work, rate, seconds):
        """Loads all nodes; returns the requests, and what was printed."""
        words = [self.client, "bench", work, *self.urls, "-t1", "-c16", f"-R{rate}", f"-d{seconds}s", "--keys", "2000", *self.ca]
        said = subprocess.run(words, capture_output=True, text=True).stdout
        counts = [line.split()[0] for line in said.splitlines() if " requests in " in line or " operations in " in line]
        return int(counts[0].replace(",", "")) if counts else rate * seconds, said

    def end(self):
        nodes.end(self.nodes)


def requests(args, work):
    kinds = [("after", args.after, False), ("after again", args.after, False), ("after, TLS", args.after, True)]
    if args.before:
        kinds.insert(0, ("before", args.before, False))
    micros = {}
    for _ in range(args.rounds):
        for name, binary, is_secure in kinds:
            for ports in (PORTS[:1], PORTS):
                cluster = Cluster(binary, is_secure, ports, work, args.after)
                cluster.bench("put", 2000, 2)
                for kind in ("get", "put"):
                    begun = cluster.cpu_micros()
                    count, _ = cluster.bench(kind, 2000, 5)
                    micros.setdefault((len(ports), kind, name), []).append((cluster.cpu_micros() - begun) / count)
                cluster.end()
    for (nodes, kind, name), found in sorted(micros.items()):
        spread = f"{min(found):.0f} to {max(found):.0f}"
        print(f"{nodes} nodes, {kind.upper()}, {name}: {statistics.median(found):.1f} us of CPU a request ({spread})", flush=True)


def handshakes(args, work):
    cluster = Cluster(args.after, True, PORTS[:1], work, args.after)
    context = ssl.create_default_context(cafile=f"{work}/tls/nodes-ca.pem")
    for _ in range(3):
        begun = cluster.cpu_micros()
        for _ in range(500):
            context.wrap_socket(socket.create_connection(("127.0.0.1", PORTS[0])), server_hostname="127.0.0.1").close()
        print(f"a handshake: {(cluster.cpu_micros() - begun) / 500:.0f} us of the node's CPU", flush=True)
    cluster.end()


def rotations(args, work):
    cluster = Cluster(args.after, True, PORTS, work, args.after)
    seconds = int(args.rotations * 2.35) + 6
    words = [args.after, "bench", "mixed", *cluster.urls, "-t1", "-c16", "-R500", f"-d{seconds}s", "--keys", "2000", *cluster.ca]
    load = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    for _ in range(args.rotations):
        subprocess.run([args.after, "tls", "init", "--renew", *cluster.urls], cwd=work, stdout=subprocess.DEVNULL, check=True)
        time.sleep(2.25)
    print(f"{args.rotations} rotations:\n{load.communicate()[0]}")
    cluster.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("after")
    parser.add_argument("before", nargs="?")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rotations", type=int, default=100)
    args = parser.parse_args()
    args.after = os.path.abspath(args.after)
    with tempfile.TemporaryDirectory(prefix="kvorum-tls-cost-") as work:
        urls = [f"https://127.0.0.1:{port}" for port in PORTS]
        subprocess.run([args.after, "tls", "init", *urls], cwd=work, stdout=subprocess.DEVNULL, check=True)
        requests(args, work)
        handshakes(args, work)
        if args.rotations:
            rotations(args, work)
    with open("/proc/stat") as stat:
        print(f"steal so far, in ticks: {stat.readline().split()[8]}")


if __name__ == "__main__":
    main()
