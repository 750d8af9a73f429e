"""Holds a proxy to the contract; see scripts/proxies.sh.

    proxies_check.py contract PROXY NODE…     ports: every method, odd keys, big bodies, ranges, keep-alive, errors
    proxies_check.py failing PROXY FAKE NODE… ports: FAKE is opened here, a node that takes requests and answers none
"""

import contextlib
import http.client
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.parse

MIB = 1 << 20
RECORDS = 64  # of one MiB each, in the ranges below
failed = []


def ask(port, method, target, body=None, headers=None, connection=None):
    """Status, headers, body. The target is sent as it is."""
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    own.request(method, target, body=body, headers=headers or {}, encode_chunked=bool(headers and "Transfer-Encoding" in headers))
    answer = own.getresponse()
    content = answer.read()
    if not connection:
        own.close()
    return answer.status, answer.headers, content


@contextlib.contextmanager
def check(name):
    began = time.monotonic()
    try:
        yield
        print(f"  {name}: ok ({time.monotonic() - began:.1f} s)")
    except Exception as error:  # each check is told of, whatever became of the one before
        failed.append(name)
        print(f"  FAILED {name}: {type(error).__name__}: {error}")


def expect(seen, wanted, what=""):
    if seen != wanted:
        raise AssertionError(f"{what} seen {seen!r:.200}, wanted {wanted!r:.200}")


def metric(nodes, name):
    """The sum of a counter over all nodes and labels."""
    total = 0
    for port in nodes:
        text = ask(port, "GET", "/metrics")[2].decode()
        total += sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.M))
    return total


def contract(proxy, nodes):
    with check("every method"):
        status, headers, body = ask(proxy, "PUT", "/v0/entity?id=p/a", b"value", {"Content-Type": "text/html"})
        expect((status, body), (201, b""))
        etag = headers["ETag"]
        status, headers, body = ask(proxy, "GET", "/v0/entity?id=p/a")
        expect((status, body, headers["ETag"], headers["Content-Length"]), (200, b"value", etag, "5"))
        for name in ("Kvorum-Replicas", "Kvorum-Epoch", "Last-Modified"):
            assert headers[name], name
        status, headers, body = ask(proxy, "HEAD", "/v0/entity?id=p/a")
        expect((status, body, headers["ETag"], headers["Content-Length"]), (200, b"", etag, "5"))
        expect(ask(proxy, "PUT", "/v0/entity?id=p/a&ttl=1h&replicas=3%2F3", b"")[0], 201)
        status, headers, body = ask(proxy, "GET", "/v0/entity?id=p/a")
        expect((status, body), (200, b""))
        assert int(headers["Kvorum-Expires"]) > time.time() * 1000
        status, headers, _ = ask(proxy, "HEAD", "/v0/entity?id=p/a")
        expect((status, headers["Content-Length"]), (200, "0"))
        expect(ask(proxy, "DELETE", "/v0/entity?id=p/a")[0], 202)
        expect(ask(proxy, "GET", "/v0/entity?id=p/a")[0], 404)
        expect(ask(proxy, "HEAD", "/v0/entity?id=p/a")[0], 404)
        for path in ("/v0/status", "/v0/topology", "/metrics", "/openapi.json", "/v0/explain?id=a"):
            expect(ask(proxy, "GET", path)[0], 200, path)
        expect(ask(proxy, "GET", "/v0/peer")[0], 404)
        for method, path in (("GET", "/admin/workers"), ("POST", "/admin/repair"), ("POST", "/admin/workers/sweep/pause"),
                             ("GET", "/debug/profile?seconds=1")):
            expect(ask(proxy, method, path)[0], 404, path)

    with check("error bodies are the node's"):
        for method, target in [("GET", "/v0/entity"), ("GET", "/v0/entity?id=none"), ("GET", "/v0/entity?id=%zz"),
                               ("PUT", "/v0/entity?id=a&replicas=9/9"), ("GET", "/nowhere"), ("POST", "/v0/entity?id=a"),
                               ("DELETE", "/v0/entities?start=a"), ("PATCH", "/v0/entity?id=a")]:
            for accept in ("text/plain", "application/json"):
                through = ask(proxy, method, target, b"", {"Accept": accept})
                straight = ask(nodes[0], method, target, b"", {"Accept": accept})
                what = f"{method} {target}"
                expect((through[0], through[2]), (straight[0], straight[2]), what)
                for name in ("Content-Type", "Allow", "Retry-After"):
                    expect(through[1][name], straight[1][name], what)
        expect(ask(proxy, "PATCH", "/v0/entity?id=a", b"")[1]["Allow"], "GET, HEAD, PUT, POST, DELETE")
        # No length at all: http.client would add one.
        with socket.create_connection(("127.0.0.1", proxy), timeout=5) as plain:
            plain.sendall(b"PUT /v0/entity?id=a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            expect(plain.makefile("rb").readline().split()[1], b"411")

    with check("odd keys pass unchanged"):
        odd = ["%2F", "a%2Fb", "a/b", "/", "//", "a//b", "%00", "%00%00", "%ff", "%FF%fe", "+", "a+b", "%2B", "%20",
               "a%20b", "%25", "%2525", "%26id%3Db", "%3F", "?", "%23", "%0D%0A", "%0a", "..", "../..", "..%2F..", "%2e%2e%2f",
               ".", "%5C", "%22", "%7B%7D", "%c3%a9", "%C3", ";", "a;b", ":", "@", "$", "%24", "~", "%7e", "'", "%27", "a=b",
               "%7F", "%80", "%ff" * 1024, "a" * 1024]
        for place, key in enumerate(odd):
            value = f"odd {place}".encode()
            expect(ask(proxy, "PUT", f"/v0/entity?id={key}", value)[0], 201, key)
            raw = urllib.parse.unquote_to_bytes(key)
            canonical = "".join(f"%{byte:02x}" for byte in raw)
            expect(ask(nodes[place % len(nodes)], "GET", f"/v0/entity?id={canonical}")[2], value, key)
            expect(ask(proxy, "GET", f"/v0/entity?id={key}")[2], value, key)
            status, _, body = ask(proxy, "GET", f"/v0/entities?start={key}&limit=1", headers={"Accept": "application/x-ndjson"})
            expect((status, json.loads(body)["value"]), (200, value.decode()), key)
        wide = "%ff" * 1024
        expect(ask(proxy, "GET", f"/v0/entities?start={wide}&end={wide}")[0], 200, "two wide keys")

    big = os.urandom(8 * MIB)
    with check("bodies of 8 MiB"):
        expect(ask(proxy, "PUT", "/v0/entity?id=p/big", big)[0], 201)
        status, headers, body = ask(proxy, "GET", "/v0/entity?id=p/big")
        expect((status, len(body), headers["Content-Length"]), (200, 8 * MIB, str(8 * MIB)))
        assert body == big, "other bytes"
        expect(ask(proxy, "HEAD", "/v0/entity?id=p/big")[1]["Content-Length"], str(8 * MIB))

    with check("a body over the limit is told the node's limit"):
        # The answer may come while the body is still being sent. A proxy that then closes with some of the body unread resets
        # the connection, and the answer may be lost on the way (RFC 9112, section 9.6): seen once with HAProxy.
        for place in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=30)
            with contextlib.suppress(OSError):
                connection.request("PUT", "/v0/entity?id=p/over", big + b"x")
            try:
                answer = connection.getresponse()
            except ConnectionError:
                assert place < 4, "five times in a row no answer came"
                continue
            expect((answer.status, answer.read()), (413, b"the value is over the limit of 8388608 bytes\n"))
            break
        expect(ask(proxy, "GET", "/v0/entity?id=p/over")[0], 404)

    with check("chunked uploads"):
        for pieces in ([], [b"a"], [b"a", b"bc"] * 50, [big[at:at + 100_000] for at in range(0, len(big), 100_000)]):
            expect(ask(proxy, "PUT", "/v0/entity?id=p/chunked", iter(pieces), {"Transfer-Encoding": "chunked"})[0], 201)
            body = ask(proxy, "GET", "/v0/entity?id=p/chunked")[2]
            assert body == b"".join(pieces), f"{len(body)} bytes came back"
        # The head alone first, as curl does with large bodies.
        with socket.create_connection(("127.0.0.1", proxy), timeout=5) as plain:
            plain.sendall(b"PUT /v0/entity?id=p/e HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            lines = plain.makefile("rb")
            expect(lines.readline().split()[1], b"100")
            lines.readline()
            plain.sendall(b"hello")
            expect(lines.readline().split()[1], b"201")

    with check("keep-alive, to the proxy and behind it"):
        connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=5)
        for place in range(10):  # every worker of the proxy may open some
            ask(proxy, "GET", "/v0/entity?id=p/none", connection=connection)
        before = metric(nodes, "kvorum_connections_accepted_total")
        socket_before = connection.sock.getsockname()
        for place in range(300):
            target = f"/v0/entity?id=p/keep{place % 7}"
            method = ("PUT", "GET", "DELETE", "GET", "HEAD")[place % 5]
            body = b"x" * (place % 3000) if method == "PUT" else None
            status, _, _ = ask(proxy, method, target, body, connection=connection)
            assert status in (200, 201, 202, 404), status
        expect(connection.sock.getsockname(), socket_before)
        # Less our own scrapes, which are a connection each; 300 requests without keep-alive would be 300.
        opened = metric(nodes, "kvorum_connections_accepted_total") - before
        assert before > 0 and opened < 40, f"{opened} connections to nodes for 300 requests"

    mib = os.urandom(MIB // 2).hex().encode()
    for place in range(RECORDS):
        expect(ask(nodes[0], "PUT", f"/v0/entity?id=range/{place:03}", mib)[0], 201)

    with check("a range comes whole"):
        for accept in ("application/x-ndjson", "*/*"):
            status, headers, body = ask(proxy, "GET", "/v0/entities?start=range/&end=range0", headers={"Accept": accept})
            expect((status, headers["Transfer-Encoding"]), (200, "chunked"))
            rows = [f"range/{place:03}".encode() for place in range(RECORDS)]
            if accept == "*/*":
                expect(body == b"".join(row + b"\n" + mib for row in rows), True, "plain")
            else:
                expect([json.loads(line)["key"].encode() for line in body.splitlines()], rows)
        expect(ask(proxy, "HEAD", "/v0/entities?start=range/")[0], 200)

    with check("a range is streamed, and a cut one is seen as cut"):
        before = metric(nodes, "kvorum_range_records_total")
        connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=30)
        connection.sock = socket.socket()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        connection.sock.settimeout(30)
        connection.sock.connect(("127.0.0.1", proxy))
        connection.request("GET", "/v0/entities?start=range/&end=range0", headers={"Accept": "application/x-ndjson"})
        answer = connection.getresponse()
        began = time.monotonic()
        assert answer.read(1), "nothing"
        assert time.monotonic() - began < 2, "the first byte came late"
        time.sleep(1)
        # Who does not read stops the node: what is under way is in sockets, not in the proxy.
        ahead = metric(nodes, "kvorum_range_records_total") - before
        assert 0 < ahead < RECORDS * 0.9, f"{ahead} of {RECORDS} records were taken from the node"
        time.sleep(3)  # past --range-timeout: the node cuts it
        taken = 1
        try:
            while piece := answer.read(65536):
                taken += len(piece)
            raise AssertionError(f"{taken} bytes looked like a whole range")
        except (http.client.IncompleteRead, ConnectionError):
            pass


class Fake(threading.Thread):
    """A node that says it is ready, takes every other request whole, and closes the connection without an answer."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.seen = []
        self.listener = socket.create_server(("127.0.0.1", port))

    def run(self):
        while True:
            connection, _ = self.listener.accept()
            with connection, contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                connection.settimeout(5)
                reader = stack.enter_context(connection.makefile("rb"))
                head = reader.readline().decode()
                length = 0
                while (line := reader.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                reader.read(length)
                if "/v0/status" in head:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                elif head:
                    self.seen.append(head.split()[1])


def failing(proxy, fake_port, nodes):
    fake = Fake(fake_port)
    fake.start()
    time.sleep(2.5)  # the proxy's checks find it ready

    with check("reads are asked again of another node"):
        for place in range(30):
            expect(ask(proxy, "GET", f"/v0/entity?id=f/none{place}")[0], 404)
        assert fake.seen, "the failing node was never asked"
    asked = len(fake.seen)
    time.sleep(3)  # past the time that a failed node is left alone

    with check("writes that a node took are not sent to another"):
        statuses = {}
        for place in range(30):
            for method in ("PUT", "DELETE"):
                target = f"/v0/entity?id=f/{proxy}/{method}{place}"
                statuses[target] = ask(proxy, method, target, b"x" * 100)[0]
        taken = fake.seen[asked:]
        assert taken, "the failing node was never asked"
        for target, status in statuses.items():
            expect(status in (201, 202), target not in taken, f"{target}: {status},")
        for target in taken:
            expect(taken.count(target), 1, "asked again")
            expect(ask(nodes[0], "GET", target)[0], 404, target)

    fake.listener.close()


def away(proxy):
    # Nothing listens any more where the third node was. nginx finds out by losing a write; HAProxy loses none.
    with check("a node that is away"):
        statuses = []
        for _ in range(2):
            statuses += [ask(proxy, "PUT", "/v0/entity?id=f/away", b"x")[0] for _ in range(60)]
            time.sleep(2.5)  # past the time that nginx leaves a failed node alone
        expect({ask(proxy, "GET", "/v0/entity?id=f/away")[0] for _ in range(60)}, {200}, "reads")
        statuses += [ask(proxy, "PUT", "/v0/entity?id=f/away", b"x")[0] for _ in range(60)]
        lost = statuses.count(502)
        print(f"  of {len(statuses)} writes while a node was away {lost} were answered 502")
        assert lost <= 8 and set(statuses) <= {201, 502}, statuses


if __name__ == "__main__":
    task, proxy, *others = sys.argv[1], *map(int, sys.argv[2:])
    if task == "contract":
        contract(proxy, others)
    elif task == "failing":
        failing(proxy, others[0], others[1:])
    else:
        away(proxy)
    sys.exit(1 if failed else 0)
