#!/usr/bin/env python3
"""How often, and for how long, this machine takes a processor away from a program that wants it. Says so for each.

    scripts/pauses.py [SECONDS] [BUSY_MS IDLE_MS]

A process on each processor asks for the time again and again; what lies between two answers, if it is more than a
millisecond and a half, was somebody else's: the kernel's own work, another program, the hypervisor. With BUSY_MS and
IDLE_MS each sleeps in turns. Run it beside nothing else. The steal that the hypervisor admits is printed as well.
"""
import multiprocessing
import os
import sys
import time

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 10
BUSY, IDLE = (float(word) / 1e3 for word in sys.argv[2:4]) if len(sys.argv) > 3 else (SECONDS, 0)
GAP = 0.0015


def steal():
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def watch(processor, results):
    os.sched_setaffinity(0, {processor})
    clock = time.monotonic
    begun = before = clock()
    rest_at, gaps = begun + BUSY, []
    while before < begun + SECONDS:
        now = clock()
        if now - before > GAP:
            gaps.append((before - begun, now - before))
        if now >= rest_at and IDLE:
            time.sleep(IDLE)
            woken = clock()
            if woken - now - IDLE > GAP:
                gaps.append((now + IDLE - begun, woken - now - IDLE))
            now = woken
            rest_at = now + BUSY
        before = now
    results.put((processor, gaps))


def main():
    results, taken = multiprocessing.Queue(), steal()
    processors = sorted(os.sched_getaffinity(0))
    watchers = [multiprocessing.Process(target=watch, args=(processor, results)) for processor in processors]
    for watcher in watchers:
        watcher.start()
    for processor, gaps in sorted(results.get() for _ in watchers):
        told = ", ".join(f"{length * 1e3:.1f} ms at {at:.2f} s" for at, length in gaps) or "none"
        print(f"processor {processor}: {len(gaps)} pauses over {GAP * 1e3} ms: {told}")
    print(f"steal {(steal() - taken) / SECONDS:.3f} cores")


if __name__ == "__main__":
    main()
