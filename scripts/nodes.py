"""What the measuring scripts share: nodes as processes of this machine. Needs Linux (/proc)."""

import os
import subprocess
import time


def wait_until_ready(client, url, *more):
    """Waits until the node at `url` has a quorum, at most 30 s and what the asking takes; `more` are further words of the command."""
    ask = [client, "status", "--node-only", "--quorum", "--url", url, *more]
    for _ in range(300):
        if subprocess.run(ask, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.1)
    raise SystemExit(f"{url} does not get ready")


def cpu_micros(nodes):
    """The CPU time of all processes so far, in microseconds: that of the threads that still run."""
    nanos = 0
    for node in nodes:
        for task in os.listdir(f"/proc/{node.pid}/task"):
            try:
                with open(f"/proc/{node.pid}/task/{task}/schedstat") as line:
                    nanos += int(line.read().split()[0])
            except OSError:
                pass
    return nanos / 1000


def end(nodes):
    """Ends all processes, and waits for them."""
    for node in nodes:
        node.terminate()
    for node in nodes:
        node.wait()
