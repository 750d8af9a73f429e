#!/usr/bin/env python3
"""Instructions that one node spends on a request, counted by callgrind: figures that a busy machine does not change.

    instructions.py BINARY [BINARY...] [--requests N]

For each binary and operation a node with one network thread and `--durability os` runs under callgrind twice, with N and with 5 N requests of 100 bytes
over one connection, one after the other; their difference by 4 N is the cost of one request (what the node does in the background is in it, less
than a hundredth). Needs valgrind, and port 9719.
"""

import argparse
import http.client
import os
import re
import shutil
import subprocess
import tempfile
import time

PORT = 9719


def request(connection, operation, number):
    body = b"x" * 100 if operation == "PUT" else None
    connection.request(operation, f"/v0/entity?id=key{number % 1000}", body)
    answer = connection.getresponse()
    answer.read()
    if answer.status not in (200, 201, 404):
        raise SystemExit(f"the node answered {answer.status}")


def counted(binary, operation, count):
    """All instructions of a node that answers `count` requests."""
    with tempfile.TemporaryDirectory(prefix="kvorum-instructions-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
        words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={work}/out", binary, "serve", "--listen", f"127.0.0.1:{PORT}"]
        words += ["--data-dir", f"{work}/data", "--durability", "os", "--threads", "1", "--request-timeout", "30s"]
        with open(f"{work}/said", "w+") as said:
            node = subprocess.Popen(words, stdout=said, stderr=said)
            try:
                connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
                for _ in range(600):
                    try:
                        connection.request("GET", "/v0/status")
                        answer = connection.getresponse()
                        answer.read()
                        if answer.status == 200:
                            break
                    except OSError:
                        connection.close()
                    time.sleep(0.1)
                for number in range(1000):
                    request(connection, "PUT", number)
                for number in range(count):
                    request(connection, operation, number)
                connection.close()
            finally:
                node.terminate()
                node.wait()
            said.seek(0)
            found = re.search(r"Collected : (\d+)", said.read())
            return int(found[1]) if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="+")
    parser.add_argument("--requests", type=int, default=1000)
    args = parser.parse_args()
    if not shutil.which("valgrind"):
        raise SystemExit("valgrind is not installed: nothing is counted")
    for binary in args.binaries:
        for operation in ("GET", "PUT"):
            few, many = (counted(binary, operation, factor * args.requests) for factor in (1, 5))
            if few is None or many is None:
                raise SystemExit(f"{binary} did not end as it should under callgrind")
            print(f"{binary}: {operation} {(many - few) / (4 * args.requests):,.0f} instructions")


if __name__ == "__main__":
    main()
