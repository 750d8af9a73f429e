#!/usr/bin/env python3
"""Says how long syncs take, what the long ones wait for in the kernel, and whether the device itself stood still.

    scripts/syncs.py [SECONDS [MILLISECONDS [THREADS]]]

Traces fdatasync(2), what threads wait for without being interruptible, and the requests of all block devices for SECONDS
(8); then shows syncs of threads whose name matches the expression THREADS (those that commit), by what those of at least
MILLISECONDS (2) waited for. A device stands still while it has requests and ends none. Needs root and the kernel's
tracefs; the tracing takes some microseconds per sync.
"""
import collections
import re
import sys

from waits import tell, traced

EVENTS = ("syscalls/sys_enter_fdatasync", "syscalls/sys_exit_fdatasync", "block/block_rq_issue", "block/block_rq_complete",
          "sched/sched_switch")
SWITCH = "events/sched/sched_switch"
# The state of a thread that waits for a device, or for another thread that does.
WAITING = "prev_state == 2"
LINE = re.compile(r"^\s*(.+)-(\d+)\s+\[\d+\]\s+\S+\s+(\d+\.\d+): (.*)$")
REQUEST = re.compile(r"block_rq_(issue|complete): (\S+) (\S+) (?:\d+ )?\(.*?\) (\d+) \+ (\d+)")
# What every wait has in common.
PLUMBING = re.compile(r"trace|^__schedule|^schedule|io_schedule")


def percentiles(times):
    """The middle and the ends of some times in seconds, as text in milliseconds."""
    times = sorted(times) or [0.0]
    p50, p99, p999 = (times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.99, 0.999))
    return f"p50 {1e3 * p50:.2f}, p99 {1e3 * p99:.2f}, p99.9 {1e3 * p999:.2f}, max {1e3 * times[-1]:.2f} ms"


class Sync:
    """One call: when it began, and each wait in it, with the kernel's functions from the inside out."""

    def __init__(self, begun):
        self.begun, self.ended, self.waits = begun, None, []


def read(lines, meant):
    """The syncs of the threads that are meant, and the requests of devices as (begin, end, device)."""
    syncs, under_way, requests, issued = [], {}, [], {}
    stack = None
    for line in lines:
        if line.startswith(" => "):
            if stack is not None:
                stack.append(line[4:].strip())
            continue
        match = LINE.match(line)
        if not match or "<stack trace>" in line:
            continue
        name, thread, at, event = match.groups()
        at, stack = float(at), None
        if event.startswith("sys_fdatasync("):
            if meant.search(name):
                under_way[thread] = Sync(at)
        elif event.startswith("sys_fdatasync ->"):
            if sync := under_way.pop(thread, None):
                sync.ended = at
                syncs.append(sync)
        elif event.startswith("sched_switch"):
            stack = []
            if thread in under_way:
                under_way[thread].waits.append((at, stack))
        elif request := REQUEST.match(event):
            what, *key = request.groups()
            if what == "issue":
                issued[tuple(key)] = at
            elif (begun := issued.pop(tuple(key), None)) is not None:
                requests.append((begun, at, key[0]))
    return syncs, requests


def waited_for(syncs):
    """Time by what it was waited for: from each wait to the next, or to the end."""
    times = collections.Counter()
    for sync in syncs:
        ends = [at for at, _ in sync.waits[1:]] + [sync.ended]
        for (at, stack), end in zip(sync.waits, ends):
            functions = [function for function in stack if not PLUMBING.search(function)]
            times[" < ".join(functions[:4]) or "unknown"] += end - at
    return times


def stands(requests):
    """The times in which a device had requests and ended none, in seconds."""
    still = []
    for device in {device for *_, device in requests}:
        own = [(begin, end) for begin, end, which in requests if which == device]
        moments = sorted([(begin, 1) for begin, _ in own] + [(end, -1) for _, end in own])
        under_way, since = 0, 0.0
        for at, step in moments:
            under_way += step
            if step < 0:
                still.append(at - since)
            if step < 0 or under_way == 1:
                since = at
    return still


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8
    least = float(sys.argv[2]) / 1e3 if len(sys.argv) > 2 else 2e-3
    meant = re.compile(sys.argv[3] if len(sys.argv) > 3 else "^kvorum:commit")
    try:
        tell(f"{SWITCH}/filter", WAITING)
        tell(f"{SWITCH}/trigger", f"stacktrace if {WAITING}")
        syncs, requests = read(traced(seconds, EVENTS), meant)
    finally:
        tell(f"{SWITCH}/trigger", f"!stacktrace if {WAITING}")
        tell(f"{SWITCH}/filter", "0")
    print(f"{len(syncs)} syncs: {percentiles([sync.ended - sync.begun for sync in syncs])}")
    print(f"{len(requests)} requests of devices: {percentiles([end - begin for begin, end, _ in requests])}")
    still = stands(requests)
    long = [time for time in still if time >= least]
    print(f"stood still: {percentiles(still)}; {len(long)} times {1e3 * least:.0f} ms and more, {1e3 * sum(long):.0f} ms together")
    long = [sync for sync in syncs if sync.ended - sync.begun >= least]
    print(f"{len(long)} syncs of {1e3 * least:.0f} ms and more; they waited for")
    for function, time in waited_for(long).most_common(8):
        print(f"{1e3 * time:10.1f} ms  {function}")


if __name__ == "__main__":
    main()
