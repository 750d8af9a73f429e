#!/usr/bin/env python3
"""Measures how a cluster of three real nodes heals itself: what docs/reports says of self-healing is made with it.

    scripts/heal.py digests|put-cost|idle|one-key|stream|refill|wiped|older|away|hints|space

KVORUM names the program (the release build by default), BASE_PORT the first of three ports, N the number of keys, VALUE
the bytes of a value, RATE the operations a second of the load beside it (0 for none), WORK a directory for the nodes'
data, or several with colons between them, which the nodes take in turn: a disk each. Every line that is printed is a
measurement; nothing is judged. The nodes end with the script.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

PROGRAM = os.environ.get("KVORUM", os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "kvorum"))
PORT = int(os.environ.get("BASE_PORT", "24000"))
KEYS = int(os.environ.get("N", "100000"))
VALUE = os.environ.get("VALUE", "100")
RATE = int(os.environ.get("RATE", "0"))
DURABILITY = os.environ.get("DURABILITY", "os")
WAIT = float(os.environ.get("WAIT", "150"))
URLS = [f"http://127.0.0.1:{PORT + node}" for node in range(3)]
NODES = range(3)


def steal():
    """Seconds that this machine was not given, and seconds in all, since it started."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[7] / 100, sum(ticks) / 100


class Cluster:
    def __init__(self, *flags):
        self.flags = list(flags)
        disks = os.environ["WORK"].split(":") if "WORK" in os.environ else [None]
        disks = [tempfile.mkdtemp(prefix="kvorum-heal.", dir=disk) for disk in disks]
        self.work, self.disks = disks[0], disks
        self.nodes = [None, None, None]
        self.began, self.steal = time.monotonic(), steal()

    def __enter__(self):
        for node in NODES:
            self.start(node)
        self.wait("all are ready", self.is_ready, quiet=True)
        return self

    def __exit__(self, *_):
        (lost, all_time), (lost_before, all_before) = steal(), self.steal
        self.say(f"steal {100 * (lost - lost_before) / max(all_time - all_before, 1e-9):.1f} % of the processors' time")
        for process in self.nodes:
            if process:
                process.kill()
                process.wait()
        for disk in self.disks:
            shutil.rmtree(disk, ignore_errors=True)

    def data(self, node):
        return f"{self.disks[node % len(self.disks)]}/n{node}"

    def say(self, text):
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)

    def start(self, node, *flags):
        log = open(f"{self.work}/log{node}", "a", encoding="utf-8")
        self.nodes[node] = subprocess.Popen(
            [PROGRAM, "serve", "--listen", f"127.0.0.1:{PORT + node}", "--cluster", ",".join(URLS), "--data-dir",
             self.data(node), "--durability", DURABILITY, "--threads", "1", *self.flags, *flags],
            stderr=log, stdout=log)

    def kill(self, node):
        self.nodes[node].kill()
        self.nodes[node].wait()
        self.nodes[node] = None

    def metrics(self, node):
        """Each family's sum over its labels."""
        with urllib.request.urlopen(URLS[node] + "/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        sums = {}
        for line in lines:
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0]
                sums[name] = sums.get(name, 0) + float(value)
        return sums

    def sum(self, name, nodes=NODES):
        return sum(self.metrics(node).get(name, 0) for node in nodes if self.nodes[node])

    def sent(self):
        """Bytes between nodes, both ways: each link counts what it asked and what it was answered."""
        return self.sum("kvorum_peer_sent_bytes_total") + self.sum("kvorum_peer_received_bytes_total")

    def cpu(self, node):
        with open(f"/proc/{self.nodes[node].pid}/stat", encoding="ascii") as file:
            words = file.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / 100

    def disk(self, node):
        return int(subprocess.check_output(["du", "-sk", self.data(node)]).split()[0]) / 1024

    def keys(self, node):
        return int(self.metrics(node)["kvorum_store_keys"])

    def status(self, node):
        request = urllib.request.Request(URLS[node] + "/v0/status", headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def is_ready(self):
        try:
            return all(
                self.votes(node) and self.metrics(node)["kvorum_peer_up"] >= 2 for node in NODES)
        except (OSError, KeyError):
            return False

    def votes(self, node):
        try:
            return self.status(node)["store"]["votes"] == "yes"
        except OSError:
            return False

    def wait_alike(self, since=None):
        """Waits until comparisons find no difference and nothing has moved for 3 s. When that last changed, since `since`."""
        since = since or time.monotonic()
        before, changed = None, time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            try:
                counts = ["kvorum_repair_pulled_records_total", "kvorum_hints_delivered_total", "kvorum_repair_differing_partitions"]
                keys = [self.keys(node) for node in NODES]
                state = (keys, [self.sum(name) for name in counts])
            except (OSError, KeyError):
                state = None
            if state != before or state is None:
                before, changed = state, now
            elif now - changed > 3 and len(set(keys)) == 1 and state[1][2] == 0:
                self.say(f"alike after {changed - since:.1f} s; keys {keys[0]}, records moved by repair "
                         f"{state[1][0] + state[1][1]:.0f}, by hints {state[1][2]:.0f}")
                return changed - since
            if now - since > WAIT:
                self.say(f"NOT alike in {WAIT} s: {state}")
                sys.exit(1)

    def wait(self, what, is_done, every=0.1, quiet=False):
        begun = time.monotonic()
        while not is_done():
            if time.monotonic() - begun > WAIT:
                self.say(f"NOT in {WAIT} s: {what}")
                sys.exit(1)
            time.sleep(every)
        took = time.monotonic() - begun
        if not quiet:
            self.say(f"{what}: after {took:.1f} s")
        return took

    def fill(self, nodes=NODES, keys=KEYS, value=VALUE):
        begun = time.monotonic()
        subprocess.run(
            [PROGRAM, "bench", "get", *[URLS[node] for node in nodes], "--prefill", "--keys", str(keys),
             "--value-size", str(value), "-c", "96", "-d", "100ms"],
            check=True, stdout=subprocess.DEVNULL)
        self.say(f"{keys} keys of {value} bytes put at nodes {list(nodes)}, {time.monotonic() - begun:.1f} s")

    def load(self, nodes=NODES, keys=KEYS, seconds=20):
        return subprocess.Popen(
            [PROGRAM, "bench", "mixed", *[URLS[node] for node in nodes], "--keys", str(keys), "-R", str(RATE), "-c", "32",
             "-t", "1", "-d", f"{seconds}s", "--value-size", VALUE, "--verify", "--json", f"{self.work}/load.json"],
            stdout=subprocess.DEVNULL)

    def verify(self, node):
        """Reads every key by way of `node`, whose own copy is the first to be asked."""
        subprocess.run(
            [PROGRAM, "bench", "get", URLS[node], "--keys", str(KEYS), "--value-size", VALUE, "--distribution", "sequential",
             "--verify", "-c", "32", "-d", "8s", "--json", f"{self.work}/load.json"],
            check=False, stdout=subprocess.DEVNULL)
        with open(f"{self.work}/load.json", encoding="utf-8") as file:
            self.say(f"read back at node {node}: {tails(json.load(file))}")

    def loaded(self, process):
        process.wait()
        with open(f"{self.work}/load.json", encoding="utf-8") as file:
            report = json.load(file)
        return report


def put(node, key, value=b"x", method="PUT"):
    request = urllib.request.Request(
        f"{URLS[node]}/v0/entity?id={urllib.parse.quote(key)}", data=value, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status


def idle():
    """What a cluster does without clients, while all agree."""
    with Cluster() as cluster:
        cluster.fill()
        cluster.wait_alike()
        time.sleep(25)
        before = (cluster.sent(), [cluster.cpu(node) for node in NODES], cluster.sum("kvorum_repair_rounds_total"))
        begun = time.monotonic()
        time.sleep(30)
        took = time.monotonic() - begun
        after = (cluster.sent(), [cluster.cpu(node) for node in NODES], cluster.sum("kvorum_repair_rounds_total"))
        cpu = [round(b - a, 2) for a, b in zip(before[1], after[1])]
        cluster.say(f"idle for {took:.1f} s: {after[0] - before[0]:.0f} bytes sent between nodes in "
                    f"{after[2] - before[2]:.0f} comparisons (settling included); processor seconds by node: {cpu}")


def one_key():
    """One key that one node lacks, among N: all that is sent between nodes until it is healed, and 20 s from then on."""
    with Cluster("--hint-max-size", "0") as cluster:
        cluster.fill()
        cluster.wait_alike()
        cluster.kill(2)
        put(0, "the one key")
        before, cpu = cluster.sent(), cluster.cpu(0)
        cluster.start(2)
        begun = time.monotonic()
        cluster.wait("the node has it", lambda: has_keys(cluster, 2, KEYS + 1), every=0.05)
        healed = time.monotonic() - begun
        # Nodes read their links' counts twice a second.
        time.sleep(1)
        sent, used = cluster.sent(), cluster.cpu(0)
        cluster.say(f"healed {healed:.1f} s after the start; sent between all nodes until a second later: "
                    f"{sent - before:.0f} bytes; processor seconds of node 0: {used - cpu:.2f}")
        cluster.wait_alike()
        time.sleep(10)
        sent, used = cluster.sent(), cluster.cpu(0)
        time.sleep(20)
        cluster.say(f"in 20 s without a difference: {cluster.sent() - sent:.0f} bytes; processor seconds of node 0: "
                    f"{cluster.cpu(0) - used:.2f}")


def has_keys(cluster, node, keys):
    try:
        return cluster.keys(node) >= keys
    except (OSError, KeyError):
        return False


def moved(cluster, before=0):
    return cluster.sum("kvorum_repair_pulled_records_total") - before


def stream():
    """N keys that one node lacks, with hints that hold none of them; beside a load of RATE, which runs before and afterwards too."""
    with Cluster("--hint-max-size", "0") as cluster:
        cluster.kill(2)
        cluster.fill(nodes=[0, 1])
        if RATE:
            cluster.say(f"before: {tails(cluster.loaded(cluster.load([0, 1], seconds=15)))}")
        load = cluster.load([0, 1], seconds=20) if RATE else None
        sent, before = cluster.sent(), moved(cluster)
        cluster.start(2)
        wait_keys(cluster, 2, KEYS, sent)
        if load:
            cluster.say(f"meanwhile: {tails(cluster.loaded(load))}")
        cluster.wait_alike()
        cluster.say(f"records moved by repair: {moved(cluster, before):.0f}")
        if load:
            # What three nodes do at rest: before there were two.
            cluster.say(f"afterwards: {tails(cluster.loaded(cluster.load([0, 1], seconds=15)))}")


def hints():
    """N writes that one node missed, all of them kept as hints; taken beside a load of RATE."""
    with Cluster() as cluster:
        cluster.kill(2)
        cluster.fill(nodes=[0, 1])
        cluster.say(f"{cluster.sum('kvorum_hints_waiting', [0, 1]):.0f} hints wait")
        load = cluster.load([0, 1], seconds=20) if RATE else None
        begun = time.monotonic()
        cluster.start(2)
        cluster.wait("no hint waits", lambda: cluster.sum("kvorum_hints_waiting", [0, 1]) == 0, every=0.5)
        cluster.say(f"all taken {time.monotonic() - begun:.1f} s after the start")
        if load:
            cluster.say(f"meanwhile: {tails(cluster.loaded(load))}")


BROUGHT = re.compile(r'^kvorum_(store_keys|repair_pulled_records_total)(?:\{\})? (\d+)$', re.M)


def brought(node):
    """Keys that the node holds, and records that repair brought it."""
    with urllib.request.urlopen(URLS[node] + "/metrics", timeout=10) as answer:
        counts = {name: int(count) for name, count in BROUGHT.findall(answer.read().decode())}
    keys = counts.pop("store_keys")
    return keys, sum(counts.values())


def wait_keys(cluster, node, keys, sent_before):
    """Waits until `node` holds `keys`, and says how fast repair brought them: from the moment when it had the first."""
    begun = time.monotonic()
    first, held = None, 0
    while held < keys and time.monotonic() - begun < WAIT:
        # Whoever looks takes a processor from the nodes, which clients feel: one page, of which three lines are read, and seldom.
        time.sleep(0.1 if not first else 1 if held < 0.9 * keys else 0.2)
        try:
            held, records = brought(node)
        except (OSError, KeyError):
            continue
        # Clients' own writes, or hints, may have brought some before.
        if not first and records > 0:
            first = (time.monotonic(), cluster.cpu(node), held, records)
    if held < keys or not first:
        cluster.say(f"{held} of {keys} keys came in {WAIT} s")
        return
    took = time.monotonic() - first[0]
    sent = cluster.sent() - sent_before
    cluster.say(f"{held} keys are there, {records:.0f} by repair in {took:.1f} s: {(records - first[3]) / took:.0f} records/s, "
                f"{sent / took / 1e6:.1f} MB/s between nodes ({sent / 1e6:.0f} MB); the first by repair {first[0] - begun:.1f} s "
                f"after the start, when {first[2]} were there; processor seconds of the node {cluster.cpu(node) - first[1]:.1f}")


def tails(report):
    """Latencies and outcomes of each of a report's loads."""
    def line(load):
        nanos = load["latency"]["nanos"]
        kinds = ", ".join(f"{kind} {each['nanos']['p99'] / 1e6:.2f}" for kind, each in load["by_kind"].items())
        return (f"{load['name']}: {load['requests_per_second']:.0f} a second, p50 {nanos['p50'] / 1e6:.2f} ms, "
                f"p99 {nanos['p99'] / 1e6:.2f} ms ({kinds or 'one kind'}), statuses {load['statuses']}, failures {load['failures']}, "
                f"wrong bodies {load['wrong_bodies']}")
    return "; ".join(line(load) for load in report["streams"])


def fill_again(cluster, load):
    """Starts node 2 beside `load`, if there is one, and waits until it has all keys and votes."""
    sent, before = cluster.sent(), moved(cluster)
    cluster.start(2)
    begun = time.monotonic()
    wait_keys(cluster, 2, KEYS, sent)
    cluster.wait("it votes", lambda: cluster.votes(2))
    took = time.monotonic() - begun
    if load:
        cluster.say(f"meanwhile: {tails(cluster.loaded(load))}")
    cluster.wait_alike()
    cluster.say(f"refilled and voting {took:.1f} s after its start; records moved by repair {moved(cluster, before):.0f}")
    if load:
        cluster.say(f"afterwards: {tails(cluster.loaded(cluster.load([0, 1], seconds=15)))}")
    cluster.verify(2)


def refill():
    """One of three nodes loses its disk; beside a load of RATE."""
    with Cluster() as cluster:
        cluster.fill()
        cluster.wait_alike()
        cluster.say(f"disk of each node: {cluster.disk(0):.0f} MiB")
        if RATE:
            cluster.say(f"before: {tails(cluster.loaded(cluster.load(seconds=15)))}")
        load = cluster.load([0, 1], seconds=30) if RATE else None
        cluster.kill(2)
        shutil.rmtree(cluster.data(2))
        time.sleep(1)
        fill_again(cluster, load)


def older():
    """One of three nodes comes back with a copy of its files that has a tenth of N keys, as of a backup; beside a load of RATE."""
    with Cluster("--hint-max-size", "0") as cluster:
        cluster.fill(keys=KEYS // 10)
        cluster.wait_alike()
        copy = f"{cluster.data(2)}.older"
        cluster.kill(2)
        shutil.copytree(cluster.data(2), copy)
        cluster.start(2)
        cluster.wait("ready", cluster.is_ready)
        cluster.fill()
        cluster.wait_alike()
        if RATE:
            cluster.say(f"before: {tails(cluster.loaded(cluster.load([0, 1], seconds=15)))}")
        cluster.kill(2)
        shutil.rmtree(cluster.data(2))
        shutil.move(copy, cluster.data(2))
        load = cluster.load([0, 1], seconds=20) if RATE else None
        fill_again(cluster, load)


def away():
    """A node is away through N writes and N / 4 deletes with hints that hold few of them."""
    with Cluster("--hint-max-size", "1MiB") as cluster:
        cluster.fill()
        cluster.wait_alike()
        cluster.kill(2)
        begun = time.monotonic()
        cluster.fill(nodes=[0, 1], value=int(VALUE) + 1)
        delete(cluster, KEYS // 4, [0, 1])
        cluster.say(f"node 2 was away for {time.monotonic() - begun:.1f} s")
        sent = cluster.sent()
        cluster.start(2)
        begun = time.monotonic()
        cluster.wait("ready", cluster.is_ready)
        cluster.wait_alike(begun)
        cluster.say(f"records moved by repair {moved(cluster):.0f}, by hints "
                    f"{cluster.sum('kvorum_hints_delivered_total'):.0f}, bytes between nodes "
                    f"{(cluster.sent() - sent) / 1e6:.1f} MB, "
                    f"{time.monotonic() - begun:.1f} s after the start")
        purged(cluster, KEYS - KEYS // 4)


def digests():
    """What of a node's processor time digests take while values are put, by a profile of its stacks."""
    with Cluster() as cluster:
        cluster.fill()
        load = subprocess.Popen(
            [PROGRAM, "bench", "put", *URLS, "--keys", str(KEYS), "-c", "32", "-t", "1", "-d", "14s", "--value-size", VALUE],
            stdout=subprocess.DEVNULL)
        time.sleep(2)
        stacks = subprocess.run(
            [PROGRAM, "profile", "--url", URLS[0], "--seconds", "10", "--format", "collapsed"],
            check=True, capture_output=True, text=True).stdout
        load.wait()
        shares = {"Digests::": 0, "LsmEngine as": 0, "kvorum:commit": 0, "fjall:worker": 0}
        total = 0
        for line in stacks.splitlines():
            stack, count = line.rsplit(" ", 1)
            if count.isdigit():
                total += int(count)
                for name in shares:
                    shares[name] += int(count) * (name in stack)
        cluster.say(f"{total} samples; with these in the stack: "
                    + ", ".join(f"{name} {100 * count / max(total, 1):.1f} %" for name, count in shares.items()))
        with open(os.environ.get("STACKS", os.devnull), "w", encoding="utf-8") as file:
            file.write(stacks)


def put_cost():
    """Processor time of all three nodes for each PUT, over 12 s of PUTs to keys that are there."""
    with Cluster() as cluster:
        cluster.fill()
        cluster.wait_alike()
        before = [cluster.cpu(node) for node in NODES]
        load = subprocess.Popen(
            [PROGRAM, "bench", "put", *URLS, "--keys", str(KEYS), "-c", "32", "-t", "1", "-d", "12s", "--value-size", VALUE,
             "--json", f"{cluster.work}/load.json"], stdout=subprocess.DEVNULL)
        report = cluster.loaded(load)
        used = sum(cluster.cpu(node) for node in NODES) - sum(before)
        puts = sum(load["succeeded"] for load in report["streams"])
        cluster.say(f"{puts} PUTs acknowledged, {used:.2f} processor seconds of the nodes: {1e6 * used / puts:.1f} microseconds each")


def purged(cluster, keys):
    """Waits until no node has more than `keys` rows, and says how they and the disks go."""
    begun = time.monotonic()
    while time.monotonic() - begun < WAIT:
        rows = [cluster.keys(node) for node in NODES]
        cluster.say(f"rows {rows}, disk {[round(cluster.disk(node)) for node in NODES]} MiB, "
                    f"processor seconds {[cluster.cpu(node) for node in NODES]}")
        if max(rows) <= keys:
            return
        time.sleep(5)


def delete(cluster, keys, nodes):
    begun = time.monotonic()
    subprocess.run(
        [PROGRAM, "bench", "delete", *[URLS[node] for node in nodes], "--keys", str(keys), "--distribution",
         "sequential", "-c", "96", "-d", os.environ.get("DELETE_FOR", "15s")],
        check=True, stdout=subprocess.DEVNULL)
    cluster.say(f"deleted for {time.monotonic() - begun:.1f} s, in order, at most {keys} keys")


def space():
    """N keys, deleted: how much of the disk they take, and when it is back."""
    with Cluster() as cluster:
        tables = lambda: [round((cluster.metrics(node)["kvorum_store_disk_bytes"]
                                 - cluster.metrics(node)["kvorum_journal_bytes"]) / 2**20) for node in NODES]
        disks = lambda: f"disk {[round(cluster.disk(node)) for node in NODES]} MiB, of them tables {tables()}"
        cluster.say(disks())
        cluster.fill()
        cluster.say(disks())
        delete(cluster, KEYS, NODES)
        begun, cpu = time.monotonic(), [cluster.cpu(node) for node in NODES]
        cluster.say(f"{disks()}, rows {[cluster.keys(node) for node in NODES]}")
        rows, since = None, time.monotonic()
        while time.monotonic() - since < 12:
            now = [cluster.keys(node) for node in NODES]
            if now != rows:
                rows, since = now, time.monotonic()
            time.sleep(0.5)
        cluster.say(f"the last row was removed {since - begun:.0f} s after the last deletion; rows {rows}")
        cluster.say(disks())
        passed = lambda node: cluster.metrics(node)["kvorum_reclaim_backlog_records"] == 0
        cluster.wait("every node has given back the space", lambda: all(passed(node) for node in NODES), every=0.5)
        used = [round(cluster.cpu(node) - before, 1) for node, before in zip(NODES, cpu)]
        cluster.say(f"{disks()}, {time.monotonic() - begun:.0f} s after the last deletion; processor seconds since {used}")
        for node in NODES:
            with open(f"{cluster.work}/log{node}", encoding="utf-8") as log:
                lines = [line.split("reclaimed ")[1].strip() for line in log if "space of removed" in line]
            cluster.say(f"node {node}: {lines}")


if __name__ == "__main__":
    scenarios = {"idle": idle, "one-key": one_key, "stream": stream, "refill": refill, "wiped": refill, "older": older, "away": away, "hints": hints,
                 "digests": digests, "put-cost": put_cost, "space": space}
    if len(sys.argv) != 2 or sys.argv[1] not in scenarios:
        sys.exit(__doc__)
    scenarios[sys.argv[1]]()
