#!/usr/bin/env python3
"""A kvorum client in one page of Python; httpx where it is installed, else the standard library.

    recipe.py URL…                    a tour: put, get, delete, ttl, range, failures, conditions
    recipe.py range START END URL…    the records of a range, a line each

KVORUM_TOKEN is the token, ID.SECRET, where the nodes need one; SSL_CERT_FILE the authorities of https nodes.
"""

import base64
import contextlib
import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

try:
    import httpx
except ImportError:
    httpx = None

TOKEN = os.environ.get("KVORUM_TOKEN")
TIMEOUT = 5  # seconds; a node answers 504 after its own --request-timeout, so let it


class Failure(Exception):
    """What a node answered other than success. `code` is for programs, `message` for people."""

    def __init__(self, status, code, message):
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code = status, code


class Unknown(Exception):
    """The request may or may not have taken effect. Repeating it is safe."""


def escape(key):
    """A key in a query: quote() with nothing safe. Not urlencode(), which writes a space as +."""
    return urllib.parse.quote(key.encode() if isinstance(key, str) else key, safe="")


@contextlib.contextmanager
def exchange(method, url, body, accept, more=None):
    """Gives the status, the headers and an iterator over the body's pieces."""
    headers = {"Accept": accept, **(more or {})}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    if httpx:
        try:
            with httpx.stream(method, url, content=body, headers=headers, timeout=TIMEOUT) as answer:
                yield answer.status_code, answer.headers, answer.iter_raw()
        except httpx.ConnectError as error:
            raise ConnectionRefusedError(str(error)) from error
        except httpx.TransportError as error:  # time-outs, and answers that end early
            raise OSError(f"{type(error).__name__}: {error}") from error
    else:
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:  # every status from 300 on
            answer = error
        except urllib.error.URLError as error:
            raise error.reason from None
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from error
        with answer:
            yield answer.status, answer.headers, _pieces(answer)


def _pieces(answer):
    try:
        while piece := answer.read(65536):
            yield piece
    except http.client.HTTPException as error:
        raise OSError(repr(error)) from error
    if answer.length:  # read() itself is silent about this
        raise OSError(f"the answer ended {answer.length} bytes early")


class Client:
    def __init__(self, *nodes):
        self.nodes = nodes  # each answers every request for every key

    def _ask(self, method, query, body=None, more=None):
        """Asks one node after the other, as long as it is certain that nothing was done."""
        problem = None
        for node in self.nodes:
            try:
                # application/json is for failures: a value comes as it is.
                url = f"{node}/v0/entity?{query}"
                with exchange(method, url, body, "application/json", more) as (status, headers, pieces):
                    content = b"".join(pieces)
            except ConnectionRefusedError as error:
                problem = error
                continue
            except OSError as error:
                raise Unknown(f"{method}: {error}") from error
            if status < 300:
                return headers, content
            failure = json.loads(content)
            problem = Failure(status, failure["error"], failure["message"])
            if status == 503:  # overloaded, starting, shutting down: nothing was done
                continue
            if status == 504 and method != "GET":
                raise Unknown(str(problem))
            raise problem
        raise problem

    def put(self, key, value, ttl=None, replicas=None, condition=None, operation=None):
        """Stores a value, for `ttl` ("30s", "500ms", …) or for good. Returns its version. `condition` is a version, or ABSENT."""
        query = f"id={escape(key)}" + (f"&ttl={ttl}" if ttl else "") + (f"&replicas={replicas}" if replicas else "")
        headers, _ = self._ask("PUT", query, value, _conditions(condition, operation))
        return headers["ETag"].strip('"')

    def get(self, key):
        """Returns the value, or None."""
        return self.read(key)[0]

    def read(self, key):
        """Returns the value and its version, or None and ABSENT."""
        try:
            headers, value = self._ask("GET", f"id={escape(key)}")
            return value, headers["ETag"].strip('"')
        except Failure as failure:
            if failure.code == "not_found":
                return None, ABSENT
            raise

    def delete(self, key, condition=None):
        """Deletes a key, also one that was never there. Returns the deletion's version."""
        headers, _ = self._ask("DELETE", f"id={escape(key)}", None, _conditions(condition))
        return headers["ETag"].strip('"')

    def add(self, key, number=1):
        """Adds to a number, and returns the new one. After Unknown it may have counted, once."""
        return int(self._ask("POST", f"id={escape(key)}&add={number}", b"")[1])

    def update(self, key, change):
        """Stores what `change` makes of the value (None without one), as one step: again where somebody came between."""
        for attempt in range(20):
            value, version = self.read(key)
            try:
                return self.put(key, change(value), condition=version)
            except Failure as failure:
                if failure.status != 412:
                    raise
            time.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 6)))
        raise TimeoutError(f"others write {key} all the time")

    def create(self, key, value):
        """Stores the value of a new key; repeating it after Unknown with the same name is no second one. 412: it is there."""
        name = uuid.uuid4().hex
        for _ in range(3):
            with contextlib.suppress(Unknown):
                return self.put(key, value, condition=ABSENT, operation=name)
        raise Unknown(f"create {key}")

    def lock(self, key, ttl):
        """Takes a lock for `ttl`, and returns its fencing token; None where somebody has it."""
        try:
            return self.put(key, b"", ttl=ttl, condition=ABSENT)
        except Failure as failure:
            if failure.status == 412:
                return None
            raise

    def fenced_put(self, key, token, value):
        """Stores a value under a lock's token, unless a later holder of the lock has written."""

        def change(old):
            if old is not None and old.split(b" ", 1)[0].decode() > token:
                raise PermissionError("the lock was lost: a later holder has written")
            return token.encode() + b" " + value

        return self.update(key, change)

    def range(self, start, end=None, limit=None):
        """Yields (key, value) in the order of the keys' bytes, as they come. A cut range raises; what came is right."""
        query = f"start={escape(start)}" + (f"&end={escape(end)}" if end else "") + (f"&limit={limit}" if limit else "")
        url = f"{self.nodes[0]}/v0/entities?{query}"
        with exchange("GET", url, None, "application/x-ndjson, application/json") as (status, _, pieces):
            if status != 200:
                failure = json.loads(b"".join(pieces))
                raise Failure(status, failure["error"], failure["message"])
            rest = b""
            for piece in pieces:
                # Split the bytes at \n and nowhere else: str.splitlines() also splits at U+2028.
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    row = json.loads(line)
                    yield _bytes(row, "key"), _bytes(row, "value")


ABSENT = "*"


def _conditions(condition, operation=None):
    headers = {"Kvorum-Operation": operation} if operation else {}
    if condition == ABSENT:
        headers["If-None-Match"] = "*"
    elif condition:
        headers["If-Match"] = f'"{condition}"'
    return headers


def _bytes(row, name):
    return row[name].encode() if name in row else base64.b64decode(row[name + "_base64"])


def conditions(client):
    # An optimistic update, and a counter.
    client.update("recipe/names", lambda old: (old or b"") + b"ann ")
    client.update("recipe/names", lambda old: (old or b"") + b"bob ")
    assert client.get("recipe/names") == b"ann bob "
    assert (client.add("recipe/hits", 5), client.add("recipe/hits", -2)) == (5, 3)
    # A create that can be repeated.
    client.create("recipe/order", b"1")
    try:
        client.create("recipe/order", b"2")
        raise AssertionError("it was there")
    except Failure as failure:
        assert failure.status == 412, failure
    # A lock. Its first holder sleeps until it is another's: without the token it would write over the second one's work.
    first = client.lock("recipe/lock", "300ms")
    assert first and client.lock("recipe/lock", "300ms") is None
    time.sleep(0.4)
    second = client.lock("recipe/lock", "30s")
    client.fenced_put("recipe/work", second, b"of the second")
    try:
        client.fenced_put("recipe/work", first, b"too late")
        raise AssertionError("the first holder had lost the lock")
    except PermissionError:
        pass
    client.delete("recipe/lock", condition=second)
    for key in ("names", "hits", "order", "work"):
        client.delete(f"recipe/{key}")


def tour(client):
    version = client.put("recipe/greeting", b"hello")
    assert client.get("recipe/greeting") == b"hello"
    assert client.put("recipe/greeting", b"hello again", replicas="3/3") > version, "versions only grow"

    odd = b"recipe/\x00\xff +%&=/#\n"  # keys are bytes
    client.put(odd, bytes(range(256)))
    assert client.get(odd) == bytes(range(256))
    client.put("recipe/empty", b"")
    assert client.get("recipe/empty") == b""

    client.put("recipe/session", b"token", ttl="300ms")
    assert client.get("recipe/session") == b"token"
    time.sleep(0.4)
    assert client.get("recipe/session") is None, "gone after its ttl"

    rows = dict(client.range("recipe/", "recipe0"))
    assert rows == {odd: bytes(range(256)), b"recipe/empty": b"", b"recipe/greeting": b"hello again"}, rows
    assert list(rows) == sorted(rows)
    assert len(list(client.range("recipe/", "recipe0", limit=2))) == 2

    for key in rows:
        client.delete(key)
    assert client.get("recipe/greeting") is None
    assert list(client.range("recipe/", "recipe0")) == []

    conditions(client)
    try:
        client.put("recipe/x", b"", replicas="2/1")
        raise AssertionError("2/1 is no quorum")
    except Failure as failure:
        assert (failure.status, failure.code) == (400, "bad_parameter"), failure
    # A node that is away is passed over.
    Client("http://127.0.0.1:1", *client.nodes).put("recipe/x", b"x")
    client.delete("recipe/x")
    print(f"python with {'httpx' if httpx else 'urllib'}: put, get, delete, ttl, range, failures, conditions: ok")


if __name__ == "__main__":
    if sys.argv[1] == "range":
        for key, value in Client(*sys.argv[4:]).range(sys.argv[2], sys.argv[3]):
            print(key, len(value))
    else:
        tour(Client(*sys.argv[1:]))
