#!/usr/bin/env python3
"""Members come and go under load: is anything lost, stale or back from the dead?

    scripts/members.py KVORUM [--keys 2000] [--clients 6] [--faults] [--steps grow,shrink,replace,cancel,lone] [--value 100]

Nodes as processes of this machine. Clients write, delete and read keys through all members at 2/3 all the time; each key belongs to one
client, which knows what it must read: the last state that was confirmed, or one of unknown outcome since. Meanwhile an operator changes
the cluster by `kvorum cluster`:

    grow      3, 4, 5 nodes          replace   a node dies with its disk, another one comes in its place; a third is slow meanwhile
    shrink    5, 4, 3 nodes          cancel    a node is added and the change is turned round, early and late
    lone      3, 2, 1, 2, 3 nodes, with keys at 1/1 that are written before (no load: 2/3 needs three)

With --faults a process is killed (SIGKILL) during each change, in turn the newcomer, an old owner and the node of the operator, and
started again. After each step every key is read at 3/3. Printed are, for each step, how long it took, how many copies of partitions
moved and how many must, and what clients saw. Ends with 1 if anything was lost, stale or back. A refusal or error that a client gets of a living node counts
as an error; planned changes should cause none.
"""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PORT = int(os.environ.get("BASE_PORT", "9760"))
STEPS = ("grow", "shrink", "replace", "cancel", "lone")
WAIT = 240


class Nodes:
    """Processes, each in a namespace of its own if there is a network (`network.Network`)."""

    def __init__(self, program, work, network=None):
        self.program, self.work, self.network = program, work, network
        self.processes, self.words = {}, {}

    def host(self, number):
        return self.network.address(number) if self.network else "127.0.0.1"

    def url(self, number):
        return f"http://{self.host(number)}:{PORT + number}"

    def prefix(self, number):
        return self.network.prefix(number) if self.network else []

    def start(self, number, how=None, environment=None):
        """Starts a node; `how` are the words of its first start."""
        if how:
            self.words[number] = how
        listen = f"{'0.0.0.0' if self.network else self.host(number)}:{PORT + number}"
        words = [*self.prefix(number), self.program, "serve", "--listen", listen, "--advertise", self.url(number)]
        words += ["--data-dir", f"{self.work}/{number}", "--admin-socket", f"{self.work}/{number}.sock", *self.words[number]]
        # A network of its own: nobody else reaches it.
        words += ["--insecure", "yes"] if self.network else []
        with open(f"{self.work}/{number}.log", "ab") as log:
            self.processes[number] = subprocess.Popen(words, stdout=log, stderr=log, env=os.environ | (environment or {}))

    def kill(self, number):
        self.processes[number].kill()
        self.processes.pop(number).wait()

    def cluster(self, number, *words, ok=True):
        # Orders are taken from the node's own machine only.
        at = ["--url", f"http://127.0.0.1:{PORT + number}"]
        done = subprocess.run([*self.prefix(number), self.program, "cluster", *words, *at], capture_output=True, text=True)
        if ok and done.returncode != 0:
            raise SystemExit(f"kvorum cluster {' '.join(words)} at node {number}: {done.stderr or done.stdout}")
        return done

    def shown(self, number):
        return json.loads(self.cluster(number, "show", "--json").stdout)

    def until(self, what, is_so, seconds=WAIT):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if is_so():
                    return
            except (OSError, SystemExit, http.client.HTTPException, ValueError):
                pass
            time.sleep(0.1)
        raise SystemExit(f"waited {seconds} s in vain: {what}")

    def is_ready(self, number):
        ask = [self.program, "status", "--node-only", "--quorum", "--url", self.url(number)]
        return subprocess.run(ask, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class Client(threading.Thread):
    """Owns some keys, and checks each answer against what it knows of the key."""

    def __init__(self, load, number, keys):
        super().__init__(daemon=True)
        self.load, self.random = load, random.Random(number)
        # The states that a key may have: bytes, or None for absent.
        self.may = {key: {None} for key in keys}
        self.ever = {key: 0 for key in keys}
        self.connections = {}

    def ask(self, method, key, body=None, replicas="2/3"):
        """The status and body of an answer; no status where none came. And whether the node was to be alive."""
        number = self.random.choice(self.load.members)
        connection = self.connections.get(number)
        try:
            if connection is None:
                connection = http.client.HTTPConnection(self.load.nodes.host(number), PORT + number, timeout=5)
                self.connections[number] = connection
            connection.request(method, f"/v0/entity?id={key}&replicas={replicas}", body)
            answer = connection.getresponse()
            return answer.status, answer.read(), number
        except (OSError, http.client.HTTPException) as error:
            self.connections.pop(number, None)
            return None, repr(error).encode(), number

    def failed(self, what, key, status, body, number):
        with self.load.lock:
            self.load.errors[f"{what} {status}"] = self.load.errors.get(f"{what} {status}", 0) + 1
            if len(self.load.shown) < 20:
                self.load.shown.append(f"{what} of {key} at node {number}: {status} {body[:200]!r}")

    def write(self, key):
        self.ever[key] += 1
        is_delete = self.random.random() < 0.1
        state = None if is_delete else f"{key}:{self.ever[key]}:{self.load.filler}".encode()
        status, body, number = self.ask("DELETE" if is_delete else "PUT", key, state)
        if status in (201, 202):
            self.may[key] = {state}
        elif status is not None and status not in (500, 504):
            if number in self.load.alive:
                self.failed("write refused", key, status, body, number)
        else:
            self.may[key] = self.may[key] | {state}
            if number in self.load.alive:
                self.failed("write unknown", key, status, body, number)

    def read(self, key, replicas="2/3"):
        status, body, number = self.ask("GET", key, replicas=replicas)
        if status not in (200, 404):
            if number in self.load.alive:
                self.failed("read", key, status, body, number)
            return False
        state = None if status == 404 else body
        if state not in self.may[key]:
            known = [None if one is None else one[:24] for one in self.may[key]]
            with self.load.lock:
                self.load.broken.append(f"{key} at node {number}: read {state and state[:24]!r}, but it must be one of {known!r}")
        else:
            self.may[key] = {state} if len(self.may[key]) == 1 else self.may[key]
        return True

    def run(self):
        keys = list(self.may)
        while not self.load.is_over:
            while self.load.is_paused and not self.load.is_over:
                self.load.resting.add(self)
                time.sleep(0.01)
            if self in self.load.resting:
                # Nodes close connections that are idle for long.
                self.connections.clear()
                self.load.resting.discard(self)
            key = self.random.choice(keys)
            if self.random.random() < 0.5:
                self.write(key)
            else:
                self.read(key)
            self.load.operations += 1


class Load:
    def __init__(self, arguments, nodes):
        self.nodes, self.members, self.alive = nodes, [], set()
        self.lock = threading.Lock()
        self.is_over, self.is_paused, self.resting = False, True, set()
        self.filler = "x" * arguments.value
        self.errors, self.broken, self.shown, self.operations = {}, [], [], 0
        keys = [f"k{number}" for number in range(arguments.keys)]
        self.clients = [Client(self, number, keys[number :: arguments.clients]) for number in range(arguments.clients)]

    def set_members(self, members):
        self.members, self.alive = list(members), set(members)

    def go(self):
        self.is_paused = False

    def pause(self):
        self.is_paused = True
        while len(self.resting) < len(self.clients):
            time.sleep(0.01)

    def verify(self, replicas="3/3"):
        """Reads all keys while nobody writes."""
        self.pause()
        for client in self.clients:
            client.connections.clear()
            for key in client.may:
                for _ in range(50):
                    if client.read(key, replicas):
                        break
                    time.sleep(0.2)
        self.go()


class Run:
    def __init__(self, arguments, work, network=None):
        self.nodes = Nodes(arguments.program, work, network)
        self.load = Load(arguments, self.nodes)
        self.with_faults, self.turn = arguments.faults, 0
        self.next = 3

    def begin(self):
        urls = ",".join(self.nodes.url(number) for number in range(3))
        for number in range(3):
            self.nodes.start(number, ["--cluster", urls])
        self.load.set_members(range(3))
        for number in range(3):
            self.nodes.until(f"node {number} is ready", lambda: self.nodes.is_ready(number), 60)
        self.nodes.cluster(0, "upgrade")
        for client in self.load.clients:
            for key in client.may:
                client.write(key)
            client.start()
        self.load.go()

    def newcomer(self):
        number, self.next = self.next, self.next + 1
        self.nodes.start(number, ["--join", ",".join(self.nodes.url(member) for member in self.load.members)])
        return number

    def plan(self, at, *words):
        """Plans, again while a member has not answered yet; returns the JSON of the plan."""
        last = []

        def is_planned():
            done = self.nodes.cluster(at, "plan", *words, "--json", ok=False)
            last.append(done.stderr.strip())
            return done.returncode == 0

        try:
            self.nodes.until("", is_planned, 60)
        except SystemExit:
            raise SystemExit(f"plan {' '.join(words)}: {last[-1]}") from None
        return self.nodes.shown(at)["plan"]

    def apply(self, at, plan):
        epoch = str(plan["on_epoch"])
        self.nodes.until("the plan is applied", lambda: self.nodes.cluster(at, "apply", epoch, ok=False).returncode == 0, 60)

    def kill_one(self, *candidates):
        """Kills one of the nodes that take part, and starts it again."""
        if not self.with_faults:
            return
        time.sleep(random.uniform(0.05, 1.5))
        victim = candidates[self.turn % len(candidates)]
        self.turn += 1
        self.load.alive.discard(victim)
        self.nodes.kill(victim)
        time.sleep(0.3)
        self.nodes.start(victim)
        self.nodes.until(f"node {victim} is ready again", lambda: self.nodes.is_ready(victim), 120)
        if victim in self.load.members:
            self.load.alive.add(victim)
        return victim

    def end_change(self, at):
        end = time.monotonic() + WAIT
        while True:
            done = self.nodes.cluster(at, "wait", "--timeout", "30", ok=False)
            if done.returncode == 0:
                return
            if time.monotonic() > end:
                raise SystemExit(f"the change does not end: {done.stderr}\n{json.dumps(self.nodes.shown(at), indent=1)[:3000]}")

    def step(self, name, change):
        errors, operations, began = sum(self.load.errors.values()), self.load.operations, time.monotonic()
        moves = change()
        took = time.monotonic() - began
        operations = self.load.operations - operations
        self.load.verify()
        errors = sum(self.load.errors.values()) - errors
        moved = f"{moves['copies']} copies of partitions move (least possible {moves['copies_least']})" if moves else "no data moves"
        print(f"{name}: {took:.1f} s, {moved}; {operations} operations beside it, {errors} errors, "
              f"{len(self.load.broken)} broken", flush=True)

    def add(self, at=0):
        joiner = self.newcomer()
        self.nodes.until(f"node {joiner} waits", lambda: self.plan(at, "add", self.nodes.url(joiner)), 60)
        plan = self.nodes.shown(at)["plan"]
        self.apply(at, plan)
        self.kill_one(joiner, 1, at)
        self.end_change(at)
        self.load.set_members([*self.load.members, joiner])
        self.nodes.until(f"node {joiner} is ready", lambda: self.nodes.is_ready(joiner), 60)
        return plan.get("moves")

    def remove(self, number, at=0):
        plan = self.plan(at, "remove", self.nodes.url(number))
        self.apply(at, plan)
        self.kill_one(number, 1, at)
        # Clients are to leave it before it has gone.
        self.load.set_members([member for member in self.load.members if member != number])
        self.end_change(at)
        self.nodes.kill(number)
        return plan.get("moves")

    def replace(self, dead, slow, at=0):
        self.load.set_members([member for member in self.load.members if member != dead])
        self.nodes.kill(dead)
        shutil.rmtree(f"{self.nodes.work}/{dead}")
        joiner = self.newcomer()
        is_over = threading.Event()

        def hinder():
            while not is_over.wait(0.03):
                self.nodes.processes[slow].send_signal(signal.SIGSTOP)
                time.sleep(0.03)
                self.nodes.processes[slow].send_signal(signal.SIGCONT)

        hindering = threading.Thread(target=hinder)
        hindering.start()
        try:
            plan = self.plan(at, "replace", self.nodes.url(dead), self.nodes.url(joiner))
            self.apply(at, plan)
            self.end_change(at)
        finally:
            is_over.set()
            hindering.join()
        self.load.set_members([*self.load.members, joiner])
        self.nodes.until(f"node {joiner} is ready", lambda: self.nodes.is_ready(joiner), 60)
        return plan.get("moves")

    def cancel(self, pause, at=0):
        joiner = self.newcomer()
        plan = self.plan(at, "add", self.nodes.url(joiner))
        self.apply(at, plan)
        time.sleep(pause)
        self.nodes.cluster(at, "cancel", ok=False)
        self.end_change(at)
        members = [member["url"] for member in self.nodes.shown(at)["members"]]
        if self.nodes.url(joiner) in members:
            self.load.set_members([*self.load.members, joiner])
            print("  (it had ended before it was turned round)")
        else:
            self.nodes.kill(joiner)
        return plan.get("moves")

    def lone(self):
        """Down to one node and up again; keys at 1/1 are all there."""
        self.load.pause()
        keeper = self.load.members[0]
        for number in range(200):
            status = self.put(keeper, f"lone{number}")
            if status != 201:
                raise SystemExit(f"a write at 1/1: {status}")
        moves = None
        for number in self.load.members[:0:-1]:
            plan = self.plan(keeper, "remove", self.nodes.url(number))
            self.apply(keeper, plan)
            self.end_change(keeper)
            self.nodes.kill(number)
            self.load.set_members([member for member in self.load.members if member != number])
            self.check_lone(keeper, f"with {len(self.load.members)} nodes")
        for _ in range(2):
            joiner = self.newcomer()
            plan = self.plan(keeper, "add", self.nodes.url(joiner))
            self.apply(keeper, plan)
            self.end_change(keeper)
            self.load.set_members([*self.load.members, joiner])
            self.nodes.until(f"node {joiner} is ready", lambda: self.nodes.is_ready(joiner), 60)
            self.check_lone(joiner, f"with {len(self.load.members)} nodes")
            moves = plan.get("moves")
        return moves

    def put(self, number, key):
        connection = http.client.HTTPConnection("127.0.0.1", PORT + number, timeout=5)
        connection.request("PUT", f"/v0/entity?id={key}&replicas=1/1", key.encode())
        return connection.getresponse().status

    def check_lone(self, number, when):
        for key in (f"lone{place}" for place in range(200)):
            for _ in range(20):
                connection = http.client.HTTPConnection("127.0.0.1", PORT + number, timeout=5)
                connection.request("GET", f"/v0/entity?id={key}&replicas=1/1")
                answer = connection.getresponse()
                body = answer.read()
                if answer.status in (200, 404):
                    break
                time.sleep(0.3)
            if (answer.status, body) != (200, key.encode()):
                self.load.broken.append(f"{key} {when}: {answer.status} {body[:100]!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVORUM")
    parser.add_argument("--keys", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--value", type=int, default=100)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--steps", default=",".join(STEPS))
    arguments = parser.parse_args()
    steps = arguments.steps.split(",")
    with tempfile.TemporaryDirectory(prefix="kvorum-members-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
        run = Run(arguments, work)
        try:
            run.begin()
            if "grow" in steps:
                run.step("grow to 4", run.add)
                run.step("grow to 5", run.add)
            if "shrink" in steps:
                while len(run.load.members) > 3:
                    last = run.load.members[-1]
                    run.step(f"shrink to {len(run.load.members) - 1}", lambda last=last: run.remove(last))
            if "replace" in steps:
                run.step("replace a dead node", lambda: run.replace(run.load.members[-1], run.load.members[1]))
            if "cancel" in steps:
                for pause in (0, 0.5, 1.5):
                    run.step(f"cancel after {pause} s", lambda pause=pause: run.cancel(pause))
            if "lone" in steps:
                run.step("shrink to one, grow to three", run.lone)
            run.load.verify()
        finally:
            run.load.is_over = True
            for process in run.nodes.processes.values():
                process.kill()
            if os.environ.get("KEEP_LOGS"):
                shutil.copytree(work, os.environ["KEEP_LOGS"], ignore=lambda _, names: [n for n in names if not n.endswith(".log")], dirs_exist_ok=True)
    print(f"{run.load.operations} operations; errors: {run.load.errors or 'none'}")
    for line in run.load.shown + run.load.broken[:20]:
        print(f"  {line}")
    sys.exit(1 if run.load.broken else 0)


if __name__ == "__main__":
    main()
