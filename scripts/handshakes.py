#!/usr/bin/env python3
"""Idle handshakes: a stranger who passes for a member opens COUNT connections to one node of a cluster and says nothing
on them. Meanwhile a client asks that node. Printed: answers by status, the slowest, and what the node holds.
KVORUM=BINARY [COUNT=9997] [BASE_PORT=26100] scripts/handshakes.py"""
import collections, http.client, os, re, resource, shutil, socket, subprocess, tempfile, threading, time

BINARY = os.environ.get("KVORUM", "target/release/kvorum")
COUNT = int(os.environ.get("COUNT", "9997"))
BASE = int(os.environ.get("BASE_PORT", "26100"))
ports = [BASE + number for number in range(4)]
urls = [f"http://127.0.0.1:{port}" for port in ports]
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def steal():
    return int(open("/proc/stat").readline().split()[8])


def hello_of_a_node(listener):
    """The head that a node sends to the fourth member, which is this script."""
    connection, _ = listener.accept()
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(65536)
        if not piece:
            return hello_of_a_node(listener)
        head += piece
    connection.close()
    return head.decode()


def main():
    data = tempfile.mkdtemp()
    nodes = [
        subprocess.Popen(
            [BINARY, "serve", "--cluster", ",".join(urls), "--listen", f"127.0.0.1:{port}", "--data-dir", f"{data}/{port}"],
            stderr=open(f"{data}/{port}.log", "w"),
        )
        for port in ports
    ]
    held = []
    try:
        while not is_ready():
            time.sleep(0.2)
        # The fourth member is stopped once all have met it; from now on this script passes for it.
        nodes[3].terminate()
        nodes[3].wait()
        listener = socket.create_server(("127.0.0.1", ports[3]), backlog=128)
        head = hello_of_a_node(listener)
        listener.close()
        topology = ask("GET", "/v0/topology")[1]
        ids = dict(re.findall(r'"id": ?"([0-9a-f]+)"[^}]*?"url": ?"([^"]+)"', topology))
        own = next((node for node, url in ids.items() if url.rstrip("/") == urls[3]), None)
        assert own, topology[:500]
        head = re.sub(r"(?im)^kvorum-node: .*$", f"kvorum-node: {own}\r", head)
        head = re.sub(r"(?im)^kvorum-store: .*$", "kvorum-store: " + "5" * 32 + "\r", head).replace("\r\r", "\r")
        answers, slowest, is_over = collections.Counter(), [0.0], threading.Event()

        def client():
            while not is_over.is_set():
                for method, path in (("PUT", "/v0/entity?id=k"), ("GET", "/v0/entity?id=k"), ("GET", "/v0/status")):
                    begun = time.monotonic()
                    try:
                        status, text = ask(method, path)
                        if status not in (200, 201) and answers[method, path, status] == 0:
                            print(f"{method} {path}: {status} {text.strip()}")
                    except OSError as error:
                        status = type(error).__name__
                    slowest[0] = max(slowest[0], time.monotonic() - begun)
                    answers[method, path, status] += 1

        asking = threading.Thread(target=client)
        asking.start()
        time.sleep(3)
        answers.clear()
        slowest[0] = 0.0
        before, begun, refused = steal(), time.monotonic(), 0
        for _ in range(COUNT):
            try:
                connection = socket.create_connection(("127.0.0.1", ports[0]), timeout=2)
                connection.sendall(head.encode())
                held.append(connection)
            except OSError:
                refused += 1
        took = time.monotonic() - begun
        first = held[-1].recv(200).split(b"\r\n")[0].decode()
        time.sleep(5)
        is_over.set()
        asking.join()
        memory = open(f"/proc/{nodes[0].pid}/status").read()
        memory = re.search(r"VmRSS:\s*(\d+)", memory).group(1)
        descriptors = len(os.listdir(f"/proc/{nodes[0].pid}/fd"))
        print(f"{COUNT} handshakes in {took:.1f} s ({refused} not connected; the last was answered {first!r}); the node holds")
        print(f"{descriptors} descriptors and {int(memory) // 1024} MiB; slowest answer {slowest[0] * 1000:.0f} ms; steal {steal() - before} ticks")
        for (method, path, status), count in sorted(answers.items(), key=str):
            print(f"  {method} {path}: {status} x {count}")
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait()
        shutil.rmtree(data)


def is_ready():
    try:
        return ask("GET", "/v0/status?ready=quorum")[0] == 200
    except OSError:
        return False


def ask(method, path):
    connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=10)
    try:
        connection.request(method, path, body=b"value" if method == "PUT" else None)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


main()
