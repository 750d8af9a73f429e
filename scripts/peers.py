#!/usr/bin/env python3
"""What a request costs the stores that users would pick instead, beside three nodes, with one driver in one run.

    peers.py KVORUM [--rounds N] [--seconds N] [--redis PATH] [--etcd PATH]

Each store is three processes on this machine; 64 connections to one of each kind that takes requests, values of 100 bytes, 100,000 keys:

    kvorum      PUT and GET 2/3 over all three nodes, --durability always
    Redis       one primary, two replicas, appendfsync always; SET, then WAIT 1; GET of the primary asks one copy
    etcd        three members; put and linearizable range through its HTTP gateway, which costs more than its gRPC

In each round every store runs every load once: as fast as it goes, and 2,000/s. Printed are medians, with the least and the greatest: CPU
time of all its processes per request (/proc/PID/task/*/schedstat), and requests per second. The driver is this script: one thread, so in the
closed loop it may be what is slowest, for all alike. A store that is not there is left out, and said to be. Needs Linux and ports 9721 to 9729.
"""

import argparse
import base64
import json
import os
import random
import selectors
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

import nodes

CONNECTIONS = 64
KEYS = 100_000
VALUE = b"x" * 100
PORTS = (9721, 9722, 9723)
PEER_PORTS = (9724, 9725, 9726)
LOADS = [(operation, rate) for operation in ("put", "get") for rate in (None, 2000)]


def is_http_whole(answer):
    """Whether an HTTP answer with a length, or without a body, is complete."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    for line in head.lower().split(b"\r\n")[1:]:
        if line.startswith(b"content-length:"):
            return len(body) >= int(line[15:])
        if line.startswith(b"transfer-encoding:"):
            return body.endswith(b"0\r\n\r\n")
    return True


def is_http_good(answer):
    return answer[9:10] == b"2" or answer[9:12] == b"404"


class Kvorum:
    name = "kvorum"
    addresses = PORTS
    is_whole, is_good = staticmethod(is_http_whole), staticmethod(is_http_good)

    def __init__(self, binary, work):
        urls = [f"http://127.0.0.1:{port}" for port in PORTS]
        start = ["serve", "--cluster", ",".join(urls)]
        self.processes = [
            start_process([binary, *start, "--listen", f"127.0.0.1:{port}", "--data-dir", f"{work}/{port}"]) for port in PORTS
        ]
        for url in urls:
            nodes.wait_until_ready(binary, url)

    def request(self, operation, key):
        head = f"{operation.upper()} /v0/entity?id={key}&replicas=2/3 HTTP/1.1\r\nHost: localhost\r\n"
        return head.encode() + (b"Content-Length: 100\r\n\r\n" + VALUE if operation == "put" else b"\r\n")


class Redis:
    name = "Redis"
    addresses = PORTS[:1]

    def __init__(self, binary, work):
        self.processes = []
        for port in PORTS:
            os.makedirs(f"{work}/{port}")
            words = [binary, "--port", str(port), "--dir", f"{work}/{port}", "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
            words += [] if port == PORTS[0] else ["--replicaof", "127.0.0.1", str(PORTS[0])]
            self.processes.append(start_process(words))
        wait_until(lambda: b"connected_slaves:2" in ask(PORTS[0], b"INFO replication\r\n") and all_online(PORTS[0]))

    def request(self, operation, key):
        if operation == "get":
            return b"*2\r\n$3\r\nGET\r\n" + bulk(key)
        return b"*3\r\n$3\r\nSET\r\n" + bulk(key) + b"$100\r\n" + VALUE + b"\r\n*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n"

    @staticmethod
    def is_whole(answer):
        if answer.startswith(b"+"):
            return answer.count(b"\r\n") == 2
        head, found, body = answer.partition(b"\r\n")
        return bool(found) and (head[:1] != b"$" or head == b"$-1" or len(body) >= int(head[1:]) + 2)

    @staticmethod
    def is_good(answer):
        # One replica at least has confirmed a SET.
        return answer.startswith(b"$") or answer.startswith(b"+OK\r\n:") and answer[6:7] != b"0"


class Etcd:
    name = "etcd"
    addresses = PORTS
    is_whole, is_good = staticmethod(is_http_whole), staticmethod(is_http_good)

    def __init__(self, binary, work):
        cluster = ",".join(f"n{port}=http://127.0.0.1:{peer}" for port, peer in zip(PORTS, PEER_PORTS, strict=True))
        self.processes = []
        for port, peer in zip(PORTS, PEER_PORTS, strict=True):
            client, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
            words = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer_url]
            words += ["--initial-advertise-peer-urls", peer_url, "--initial-cluster", cluster, "--data-dir", f"{work}/{port}"]
            self.processes.append(start_process([binary, "--name", f"n{port}", *words]))
        wait_until(lambda: all(is_http_good(ask(port, self.request("put", "first"))) for port in PORTS))

    def request(self, operation, key):
        body = {"key": base64.b64encode(key.encode()).decode()}
        if operation == "put":
            body["value"] = base64.b64encode(VALUE).decode()
        body = json.dumps(body).encode()
        path = {"put": "put", "get": "range"}[operation]
        return f"POST /v3/kv/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def bulk(text):
    return f"${len(text)}\r\n{text}\r\n".encode()


def start_process(words):
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ask(port, request):
    """What comes within half a second; nothing if nobody listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5) as stream:
            stream.settimeout(0.5)
            stream.sendall(request)
            return stream.recv(65536)
    except OSError:
        return b""


def all_online(port):
    return ask(port, b"INFO replication\r\n").count(b"state=online") == 2


def wait_until(is_ready):
    for _ in range(300):
        if is_ready():
            return
        time.sleep(0.1)
    raise SystemExit("a store does not get ready")


class Load:
    """Requests over 64 connections, one at a time on each."""

    def __init__(self, store):
        self.store = store
        self.selector = selectors.DefaultSelector()
        self.random = random.Random(1)
        self.idle = []
        for number in range(CONNECTIONS):
            port = store.addresses[number % len(store.addresses)]
            stream = socket.create_connection(("127.0.0.1", port))
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(stream, selectors.EVENT_READ, bytearray())
            self.idle.append(stream)

    def begin(self, operation):
        self.idle.pop().sendall(self.store.request(operation, f"key{self.random.randrange(KEYS)}"))

    def run(self, operation, rate, seconds):
        """Returns how many requests were answered, and in how many seconds."""
        begun, begun_count, answered = time.monotonic(), 0, 0
        while True:
            now = time.monotonic() - begun
            due = 1 << 60 if rate is None else int(now * rate)
            is_over = now >= seconds
            while self.idle and not is_over and begun_count < due:
                self.begin(operation)
                begun_count += 1
            if is_over and len(self.idle) == CONNECTIONS:
                return answered, now
            if now > seconds + 10:
                raise SystemExit(f"{self.store.name} does not answer")
            for key, _ in self.selector.select(0.0005 if rate else 0.01):
                piece = key.fileobj.recv(65536)
                if not piece:
                    raise SystemExit(f"{self.store.name} closed a connection")
                key.data.extend(piece)
                if self.store.is_whole(bytes(key.data)):
                    if not self.store.is_good(bytes(key.data)):
                        raise SystemExit(f"{self.store.name} answered {bytes(key.data[:200])}")
                    key.data.clear()
                    answered += 1
                    self.idle.append(key.fileobj)

    def end(self):
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()


def shown(values, digits=0):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvorum")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--redis", default=shutil.which("redis-server"))
    parser.add_argument("--etcd", default=shutil.which("etcd"))
    args = parser.parse_args()
    stores, figures = [], {}
    for kind, binary in ((Kvorum, args.kvorum), (Redis, args.redis), (Etcd, args.etcd)):
        if binary:
            stores.append((kind, binary))
        else:
            print(f"{kind.name}: not installed")
    for _ in range(args.rounds):
        for kind, binary in stores:
            with tempfile.TemporaryDirectory(prefix="kvorum-peers-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
                store = kind(binary, work)
                try:
                    load = Load(store)
                    load.run("put", None, 2)
                    for operation, rate in LOADS:
                        before = nodes.cpu_micros(store.processes)
                        count, seconds = load.run(operation, rate, args.seconds)
                        micros = (nodes.cpu_micros(store.processes) - before) / count
                        figures.setdefault((operation, rate, kind.name), []).append((micros, count / seconds))
                    load.end()
                finally:
                    nodes.end(store.processes)
    print("| load | " + " | ".join(f"{kind.name}, µs | requests/s" for kind, _ in stores) + " |")
    print("| --- |" + " --- |" * (2 * len(stores)))
    for operation, rate in LOADS:
        row = []
        for kind, _ in stores:
            both = figures[operation, rate, kind.name]
            row += [shown([micros for micros, _ in both], 1), shown([count for _, count in both])]
        print(f"| {operation}, {f'{rate:,}/s' if rate else 'closed loop'} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
