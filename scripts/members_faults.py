#!/usr/bin/env python3
"""Members come and go while nodes die at each step, are cut off from each other, and changes are turned round.

    scripts/members_faults.py KVORUM [--kinds crash,lacks,cut,cancel] [--keys 150] [--clients 3] [--only TEXT] [--from-four]

Nodes as processes of this machine, with the clients and the checks of members.py. Each case is one change, from three nodes to four or
back, with one fault:

    crash    a node dies (SIGABRT) at a named step of persisting something (kvorum-server/src/crash.rs), and is started again: the one
             that drives, the one that joins or leaves, another owner. Needs a build with crash points: target/debug/kvorum, once
             `cargo test -p kvorum --no-run` has built it
    lacks    an owner is killed and stays away until the change has marked it as lacking records; the driver dies at that step, too
    cut      a node is cut off, only what it sends or what it receives is lost, or two nodes are cut from each other, as soon as a phase
             is seen: written by both and read by the old owners (J1), read by the new ones (J2), ended. Needs root, ip, nft
    cancel   the change is turned round as soon as a phase is seen, in the first window or a later one, or a node is killed while it goes back

After each case all keys are read at 3/3, and /v0/explain must show each of them on exactly its first three nodes. A case in which the node
never came to the step is printed as such. Ends with 1 if anything was lost, stale or back, or copies were wrong.
"""
import argparse
import http.client
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time

import members
import network

# Promise and acceptance are both a ballot that is stored, so the first of them is the promise for the first step.
STEPS = ("promise of J1", "acceptance of J1", "promise of J2", "acceptance of J2", "promise of the end", "acceptance of the end")
EPOCHS = ("J1", "J2", "end")
OTHERS = ("compared-before", "compared-after", "unowned-before", "unowned-after")
CUTS = ("cut off", "sends lost", "receives lost", "two cut from each other")
CUT_SECONDS = 2.5
# Longer than the silence after which a member is marked as lacking records.
AWAY_SECONDS = 36
COPIES_WAIT = 90


class Socket(http.client.HTTPConnection):
    """A connection to a node's socket for administration."""

    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(self.path)


def ask_cluster(port):
    """What the node at a port of this machine shows."""
    return shown_by(http.client.HTTPConnection("127.0.0.1", port, timeout=5))


def shown_by(connection):
    try:
        connection.request("GET", "/admin/cluster", headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"/admin/cluster: {answer.status}")
    return json.loads(body)


class Case:
    """What happened in one case."""

    def __init__(self, kind, name):
        self.kind, self.name, self.note, self.is_reached = kind, name, "", True
        self.began = time.monotonic()


class Faults(members.Run):
    def __init__(self, arguments, work, net=None):
        arguments.faults = False
        super().__init__(arguments, work, net)
        self.network, self.random = net, random.Random(arguments.seed)
        self.only, self.is_from_four = arguments.only, arguments.from_four
        self.totals, self.moves = {}, []
        self.wrong = []

    # What is seen of the cluster.

    def state(self, number):
        return shown_by(Socket(f"{self.nodes.work}/{number}.sock"))

    def seen(self, number):
        """The state, or nothing while the node does not answer."""
        try:
            return self.state(number)
        except (OSError, http.client.HTTPException, ValueError):
            return None

    @staticmethod
    def phase(state):
        change = state and state["change"]
        return "stable" if not change else "J1" if change["reads"] == "old" else "J2"

    def has_heard(self, number, watch):
        """Whether a member works with the configuration of now, as another one has heard."""
        state, url = self.state(watch), self.nodes.url(number)
        return any(member["url"] == url and member["epoch"] == state["epoch"] for member in state["members"])

    def driver(self, watch):
        """The member that drives: the one with the lowest id."""
        by_url = {self.nodes.url(number): number for number in self.nodes.words}
        return by_url[min(self.state(watch)["members"], key=lambda member: member["id"])["url"]]

    def roles(self, watch=None):
        """Who drives, who is to leave, and another owner."""
        load = self.load.members
        driver = self.driver(load[0] if watch is None else watch)
        others = [member for member in load if member != driver]
        return driver, others[-1], others[0]

    # One change.

    def prepare(self, environment=None):
        """The words of the next change, and the node that joins or leaves."""
        if len(self.load.members) == 3:
            moving = self.next
            self.next += 1
            self.nodes.start(moving, ["--join", ",".join(map(self.nodes.url, self.load.members))], environment)
            return True, moving, ["add", self.nodes.url(moving)]
        moving = self.roles()[1]
        return False, moving, ["remove", self.nodes.url(moving)]

    def is_done(self, state, is_growing, moving):
        urls = [member["url"] for member in state["members"]]
        return self.phase(state) == "stable" and (self.nodes.url(moving) in urls) == is_growing

    def begin_change(self, at, words, window="4096", process=None):
        """Plans and applies a change at a node; gives up once `process` has ended, if one is named."""
        plan = None

        def is_begun():
            nonlocal plan
            if process and process.poll() is not None:
                return True
            state = self.state(at)
            if state["change"]:
                return True
            done = self.nodes.cluster(at, "plan", *words, "--window", window, ok=False)
            if done.returncode != 0:
                return False
            plan = self.state(at)["plan"]
            return self.nodes.cluster(at, "apply", str(plan["on_epoch"]), "--timeout", "5", ok=False).returncode == 0

        self.nodes.until(f"the change begins: {words}", is_begun, 90)
        if plan and plan.get("moves"):
            self.moves.append((plan["moves"]["copies"], plan["moves"]["copies_least"]))

    def finish(self, at, is_growing, moving, words):
        """Brings the change to its end, beginning it again if it came to nothing."""

        def is_over():
            state = self.state(at)
            if self.is_done(state, is_growing, moving):
                return True
            if self.phase(state) == "stable":
                self.begin_change(at, words)
            time.sleep(0.2)
            return False

        self.nodes.until(f"the change ends: {words}", is_over)
        self.nodes.until("all know of the end", lambda: self.nodes.cluster(at, "wait", "--timeout", "30", ok=False).returncode == 0)
        for number in {*self.load.members, *([moving] if is_growing else [])} - ({moving} if not is_growing else set()):
            self.nodes.until(f"node {number} is ready", lambda number=number: self.nodes.is_ready(number), 90)
        if is_growing:
            self.load.set_members([*self.load.members, moving])
        else:
            self.nodes.kill(moving)
            shutil.rmtree(f"{self.nodes.work}/{moving}", ignore_errors=True)
            self.load.set_members([member for member in self.load.members if member != moving])

    def leave(self, moving):
        """Clients leave a node before it has gone."""
        alive = self.load.alive
        self.load.set_members([member for member in self.load.members if member != moving])
        self.load.alive &= alive

    def restart(self, number, environment=None):
        self.load.alive.discard(number)
        self.nodes.kill(number)
        self.nodes.start(number, environment=environment)
        self.nodes.until(f"node {number} is ready", lambda: self.nodes.is_ready(number), 90)

    # The checks after it.

    def explained(self, key):
        """What is wrong with the copies of a key, if anything."""
        number = self.load.members[0]
        connection = http.client.HTTPConnection(self.nodes.host(number), members.PORT + number, timeout=5)
        try:
            connection.request("GET", f"/v0/explain?id={key}", headers={"Accept": "application/json"})
            replicas = json.loads(connection.getresponse().read())["replicas"]
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            return f"{key}: {error!r}"
        finally:
            connection.close()
        if len(replicas) != len(self.load.members) or not all(replica["answered"] for replica in replicas):
            return f"{key}: {len(replicas)} nodes, {sum(replica['answered'] for replica in replicas)} answered"
        held = [replica["held"] and (replica["held"]["version"], replica["held"]["value_hash"]) for replica in replicas]
        if any(held[3:]):
            return f"{key}: more than three copies: {held}"
        is_dead = all(not replica["held"] or replica["held"]["state"] == "tombstone" for replica in replicas)
        if not is_dead and (len(set(held[:3])) != 1 or held[0] is None):
            return f"{key}: the copies differ: {held}"
        return None

    def check_copies(self):
        self.load.pause()
        keys = [key for client in self.load.clients for key in client.may]
        end = time.monotonic() + COPIES_WAIT
        bad = [key for key in keys if self.explained(key)]
        while bad and time.monotonic() < end:
            time.sleep(1)
            bad = [key for key in bad if self.explained(key)]
        self.wrong += [text for text in map(self.explained, bad) if text]
        self.load.go()

    def case(self, kind, name, change):
        if self.only and self.only not in f"{kind}: {name}":
            return
        case = Case(kind, name)
        before = dict(self.load.errors), self.load.operations, len(self.load.broken), len(self.wrong)
        self.load.go()
        change(case)
        took, operations = time.monotonic() - case.began, self.load.operations - before[1]
        self.load.verify()
        self.check_copies()
        new = {what: count - before[0].get(what, 0) for what, count in self.load.errors.items() if count > before[0].get(what, 0)}
        errors, broken = sum(new.values()), len(self.load.broken) - before[2]
        wrong = len(self.wrong) - before[3]
        total = self.totals.setdefault(kind, dict.fromkeys(("cases", "not reached", "operations", "errors", "broken", "wrong"), 0))
        for of, count in (("cases", 1), ("not reached", int(not case.is_reached)), ("operations", operations), ("errors", errors),
                          ("broken", broken), ("wrong", wrong)):
            total[of] += count
        print(f"{kind}: {name}: {took:.1f} s, {case.note or 'done'}; {operations} operations, {errors} errors{f' {new}' if new else ''}, {broken} broken, "
              f"{wrong} keys with wrong copies", flush=True)

    # The kinds of cases.

    def crash(self, role, point, count, case):
        """A change in which the node of a role dies when it reaches a point for the `count`th time, and comes back."""
        is_growing = len(self.load.members) == 3
        base = self.state(self.load.members[0])["epoch"]
        if role == "joins or leaves" and is_growing and point.startswith("epoch"):
            # It first takes over all configurations up to now.
            count += base
        armed = {"KVORUM_CRASH_AT": f"{point}:{count}"}
        is_joiner = role == "joins or leaves" and is_growing
        _, moving, words = self.prepare(armed if is_joiner else None)
        driver, _, owner = self.roles()
        victim = {"drives": driver, "joins or leaves": moving, "owner": owner}[role]
        if not is_joiner:
            self.restart(victim, armed)
        process = self.nodes.processes[victim]
        # The operator's node dies with the driver: the plan is lost if nothing was decided.
        watch = next(member for member in self.load.members if member not in (victim, moving))
        at = victim if role == "drives" else watch
        if not is_growing:
            self.leave(moving)
        self.begin_change(at, words, process=process)
        end = time.monotonic() + 60
        over_since = None
        while process.poll() is None and time.monotonic() < end:
            state = self.seen(watch)
            if state and self.is_done(state, is_growing, moving):
                over_since = over_since or time.monotonic()
                # Records that are no longer owned are dropped some seconds later.
                if time.monotonic() > over_since + (8 if point.startswith("unowned") else 2):
                    break
            time.sleep(0.05)
        case.is_reached = process.poll() is not None
        state = self.seen(watch)
        case.note = f"died, the others were at epoch {state['epoch'] - base:+}, {self.phase(state)}" if case.is_reached and state else "not reached"
        self.nodes.kill(victim)
        time.sleep(self.random.uniform(0, 1))
        self.nodes.start(victim)
        if victim in self.load.members or not is_growing:
            self.nodes.until(f"node {victim} answers", lambda: self.seen(victim) is not None, 90)
        self.finish(watch, is_growing, moving, words)

    def crashes(self):
        for role in ("drives", "owner", "joins or leaves"):
            for point in ("ballot-before", "ballot-after"):
                for place, step in enumerate(STEPS):
                    yield f"who {role}, {point}, {step}", role, point, place + 1
            for point in ("epoch-before", "epoch-after"):
                for place, step in enumerate(EPOCHS):
                    yield f"who {role}, {point}, {step}", role, point, place + 1
            for point in OTHERS:
                yield f"who {role}, {point}", role, point, 1

    def run_crash(self):
        """Cases grow and shrink in turn."""
        self.be(not self.is_from_four)
        for name, role, point, count in self.crashes():
            if point.startswith("unowned"):
                # Only a member that stays gives up records, to one that joins.
                if role == "joins or leaves":
                    continue
                self.be(True)
            size = "3 to 4" if len(self.load.members) == 3 else "4 to 3"
            self.case("crash", f"{name}, {size}", lambda case, of=(role, point, count): self.crash(*of, case))

    def be(self, is_growing):
        """Makes the next change one that grows, or one that shrinks, by a change without a fault."""
        if (len(self.load.members) == 3) != is_growing:
            self.plain()

    def plain(self):
        is_growing, moving, words = self.prepare()
        at = next(member for member in self.load.members if member != moving)
        if not is_growing:
            self.leave(moving)
        self.begin_change(at, words)
        self.finish(at, is_growing, moving, words)

    def await_death(self, node, case):
        """Waits until a node has died at the step of the case, and starts it again."""
        process = self.nodes.processes[node]
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        case.is_reached = process.poll() is not None
        self.nodes.kill(node)
        self.nodes.start(node)

    def lacks(self, point, count, of_driver, case):
        is_growing, moving, words = self.prepare()
        driver, _, owner = self.roles()
        if of_driver:
            self.restart(driver, {"KVORUM_CRASH_AT": f"{point}:{count}"})
        watch = next(member for member in self.load.members if member not in (driver, owner, moving))
        if not is_growing:
            self.leave(moving)
        self.load.alive.discard(owner)
        self.begin_change(watch, words)
        # A change waits for ever for a member that has not heard of it.
        self.nodes.until("the owner has heard of the change", lambda: self.has_heard(owner, watch), 30)
        self.nodes.kill(owner)
        if of_driver:
            self.await_death(driver, case)
        is_marked = lambda: any(member["lacks"] for member in self.state(watch)["members"])
        self.nodes.until("the owner is marked", is_marked, 90)
        if of_driver:
            self.nodes.start(owner)
        else:
            self.nodes.start(owner, environment={"KVORUM_CRASH_AT": f"{point}:{count}"})
            self.await_death(owner, case)
        case.note = "died, and the mark was taken away" if case.is_reached else "not reached, and the mark was taken away"
        self.nodes.until("no member is marked", lambda: not is_marked(), 120)
        self.finish(watch, is_growing, moving, words)

    def run_lacks(self):
        cases = [("who drives", point, count, True) for point, count in
                 (("ballot-before", 3), ("ballot-after", 4), ("epoch-before", 2), ("epoch-after", 2))]
        cases += [("who was marked", point, 1, False) for point in ("epoch-before", "epoch-after", "compared-before", "compared-after")]
        for who, point, count, of_driver in cases:
            name = f"{who}, {point}:{count}, {'3 to 4' if len(self.load.members) == 3 else '4 to 3'}"
            self.case("lacks", name, lambda case, of=(point, count, of_driver): self.lacks(*of, case))

    def until_phase(self, watch, phase, is_growing, moving, begin=0):
        """Waits for a phase, as short as it may be. Whether it was seen."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            state = self.seen(watch)
            if state and self.is_done(state, is_growing, moving):
                return phase == "ended"
            if state and self.phase(state) == phase and state["change"]["begin"] >= begin:
                return True
            time.sleep(0.01)
        return False

    def cut(self, kind, phase, role, seconds, case):
        is_growing, moving, words = self.prepare()
        driver, _, owner = self.roles()
        victim = {"drives": driver, "joins or leaves": moving, "owner": owner}[role]
        watch = next(member for member in self.load.members if member not in (victim, moving))
        if not is_growing:
            self.leave(moving)
        # All of them may fail to answer: who is cut off has no quorum, and who is not may wait for it.
        alive, self.load.alive = self.load.alive, set()
        self.begin_change(watch, words)
        case.is_reached = self.until_phase(watch, phase, is_growing, moving)
        rest = [number for number in self.nodes.processes if number != victim]
        if kind == "two cut from each other":
            self.network.cut(victim, [moving if victim != moving else owner])
        else:
            self.network.cut(victim, rest, is_sent=kind != "receives lost", is_received=kind != "sends lost")
        time.sleep(seconds)
        during = self.seen(watch)
        self.network.heal()
        marked = [member["url"] for member in during["members"] if member["lacks"]] if during else []
        case.note = f"healed in {self.phase(during)}{', one was marked' if marked else ''}" if case.is_reached else "the phase was not seen"
        self.finish(watch, is_growing, moving, words)
        self.load.alive |= alive & set(self.load.members)
        self.nodes.until("no member is marked", lambda: not any(m["lacks"] for m in self.state(watch)["members"]), 120)

    def run_cut(self):
        for place, phase in enumerate(("J1", "J2", "ended")):
            for number, kind in enumerate(CUTS):
                for turn in range(2):
                    role = ("drives", "joins or leaves", "owner")[(place + number + turn) % 3]
                    size = "3 to 4" if len(self.load.members) == 3 else "4 to 3"
                    self.case("cut", f"{phase}, {kind}, who {role}, {size}",
                              lambda case, of=(kind, phase, role, CUT_SECONDS): self.cut(*of, case))
        for role in ("owner", "joins or leaves"):
            size = "3 to 4" if len(self.load.members) == 3 else "4 to 3"
            self.case("cut", f"J1, cut off for {AWAY_SECONDS} s, who {role}, {size}",
                      lambda case, of=("cut off", "J1", role, AWAY_SECONDS): self.cut(*of, case))

    def turn_round(self, phase, begin, is_killed, case):
        is_growing, moving, words = self.prepare()
        driver, _, _ = self.roles()
        at = next(member for member in self.load.members if member not in (driver, moving))
        members_before = list(self.load.members)
        if not is_growing:
            self.leave(moving)
        self.begin_change(at, words, window="256")
        case.is_reached = self.until_phase(at, phase, is_growing, moving, begin)
        epoch = self.state(at)["epoch"]
        self.nodes.cluster(at, "cancel", ok=False)
        if is_killed:
            self.load.alive.discard(driver)
            self.nodes.kill(driver)
            time.sleep(0.3)
            self.nodes.start(driver)
        self.nodes.until("the change has gone back", lambda: self.state(at)["change"] is None)
        self.nodes.until("all know of the end", lambda: self.nodes.cluster(at, "wait", "--timeout", "30", ok=False).returncode == 0)
        state = self.state(at)
        if self.is_done(state, is_growing, moving):
            case.note = "it had ended before it was turned round"
            self.finish(at, is_growing, moving, words)
            return
        case.note = f"went back in {state['epoch'] - epoch} epochs" + (", its driver was killed" if is_killed else "")
        if is_killed:
            self.nodes.until(f"node {driver} is ready", lambda: self.nodes.is_ready(driver), 90)
        self.load.set_members(members_before)
        if is_growing:
            self.nodes.kill(moving)

    def run_cancel(self):
        for is_growing in (True, False):
            self.be(is_growing)
            for phase, begin in (("J1", 0), ("J2", 0), ("J1", 512), ("J2", 512)):
                for is_killed in (False, True):
                    name = f"{phase} of {'the first' if not begin else 'a later'} window{', driver killed' if is_killed else ''}, "
                    self.case("cancel", name + ("3 to 4" if is_growing else "4 to 3"),
                              lambda case, of=(phase, begin, is_killed): self.turn_round(*of, case))

    def table(self):
        print("| kind | cases | never came to the step | operations beside them | errors of living nodes | lost, stale or back | keys with wrong copies |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for kind, total in self.totals.items():
            print(f"| {kind} | " + " | ".join(f"{total[of]:,}" for of in total) + " |")
        moved, least = (sum(of) for of in zip(*self.moves)) if self.moves else (0, 0)
        print(f"{len(self.moves)} changes planned: {moved:,} copies of partitions move, {least:,} is the least possible")


def run_kinds(arguments, kinds, net):
    with tempfile.TemporaryDirectory(prefix="kvorum-members-", dir=os.environ.get("SCRATCH", "/var/tmp")) as work:
        run = Faults(arguments, work, net)
        try:
            run.begin()
            for kind in kinds:
                {"crash": run.run_crash, "lacks": run.run_lacks, "cut": run.run_cut, "cancel": run.run_cancel}[kind]()
            run.load.verify()
        finally:
            run.load.is_over = True
            for client in run.load.clients:
                if client.is_alive():
                    client.join(20)
            for process in run.nodes.processes.values():
                process.kill()
            for process in run.nodes.processes.values():
                process.wait()
            run.table()
            print(f"errors: {run.load.errors or 'none'}")
            for line in run.load.shown + run.load.broken[:20] + run.wrong[:20]:
                print(f"  {line}")
            if os.environ.get("KEEP_LOGS"):
                leave_out = lambda _, names: [name for name in names if not name.endswith(".log")]
                shutil.copytree(work, os.environ["KEEP_LOGS"], ignore=leave_out, dirs_exist_ok=True)
        return not run.load.broken and not run.wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="KVORUM")
    parser.add_argument("--kinds", default="crash,lacks,cut,cancel")
    parser.add_argument("--keys", type=int, default=150)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--value", type=int, default=100)
    parser.add_argument("--only", default="", help="only the cases whose names have this text")
    parser.add_argument("--from-four", action="store_true", help="of the kind crash: the first case shrinks, so that those grow that shrank")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    is_right = True
    if here := [kind for kind in kinds if kind != "cut"]:
        is_right &= run_kinds(arguments, here, None)
    if "cut" in kinds:
        # Each change to four nodes has another newcomer.
        try:
            net = network.Network(24)
        except OSError as error:
            sys.exit(f"no partitions here: {error}")
        try:
            is_right &= run_kinds(arguments, ["cut"], net)
        finally:
            net.remove()
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
