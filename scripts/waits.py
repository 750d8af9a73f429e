#!/usr/bin/env python3
"""Says which threads wait for a processor, for how long, and who runs there meanwhile.

    scripts/waits.py [SECONDS [MICROSECONDS [THREADS]]]

Traces the scheduler (sched_wakeup, sched_switch) for SECONDS (4), then shows waits of at least MICROSECONDS (150) of
threads whose name matches the expression THREADS (those that requests wait for, and the driver's). A wait begins when a
thread wakes, or is taken off its processor although it could go on. Needs root and the kernel's tracefs. The tracing
itself takes a microsecond or two per switch: a machine that is nearly full is full with it.
"""
import bisect
import collections
import pathlib
import re
import sys
import time

TRACE = pathlib.Path("/sys/kernel/tracing")
EVENTS = ("sched/sched_switch", "sched/sched_wakeup")
BUFFER_KIB = 80_000
SWITCH = re.compile(r"\[(\d+)\].* (\d+\.\d+): sched_switch: prev_comm=(.*?) prev_pid=(\d+) prev_prio=\d+ "
                    r"prev_state=(\S+) ==> next_comm=(.*?) next_pid=(\d+)")
KEPT = re.compile(r"entries-in-buffer/entries-written: (\d+)/(\d+)")
WAKEUP = re.compile(r" (\d+\.\d+): sched_wakeup: comm=(.*?) pid=(\d+)")


def tell(path, text):
    (TRACE / path).write_text(text, encoding="ascii")


def traced(seconds, events=EVENTS):
    """The lines of a trace of so many seconds; nothing of it stays switched on."""
    size = (TRACE / "buffer_size_kb").read_text(encoding="ascii").split()[0]
    try:
        tell("tracing_on", "0")
        tell("current_tracer", "nop")
        tell("buffer_size_kb", str(BUFFER_KIB))
        tell("trace", "")
        for event in events:
            tell(f"events/{event}/enable", "1")
        tell("tracing_on", "1")
        time.sleep(seconds)
        tell("tracing_on", "0")
        with open(TRACE / "trace", encoding="utf-8", errors="replace") as file:
            for line in file:
                kept = KEPT.search(line) if line.startswith("#") else None
                if kept and kept[1] != kept[2]:
                    print(f"!! only the last {kept[1]} of {kept[2]} events were kept: trace for less long", file=sys.stderr)
                yield line
    finally:
        for event in events:
            tell(f"events/{event}/enable", "0")
        tell("trace", "")
        tell("buffer_size_kb", size)


def read(lines):
    """Who ran when on each processor, as (begin, end, name), and all waits, as (begin, end, name, processor, why)."""
    runs, waits = collections.defaultdict(list), []
    running, ready = {}, {}
    for line in lines:
        if match := SWITCH.search(line):
            processor, at, name, thread, state, next_name, next_thread = match.groups()
            at = float(at)
            if processor in running:
                runs[processor].append((*running[processor], at))
            running[processor] = (next_name, at)
            if state.startswith("R") and thread != "0":
                ready[thread] = (at, "preempted")
            if next_thread in ready:
                begin, why = ready.pop(next_thread)
                waits.append((begin, at, next_name, processor, why))
        elif match := WAKEUP.search(line):
            at, name, thread = match.groups()
            ready[thread] = (float(at), "woken")
    return {cpu: [(begin, end, name) for name, begin, end in all_runs] for cpu, all_runs in runs.items()}, waits


def ran_in(runs, begins, spans):
    """Who ran in the spans (begin, end, processor), and for how long."""
    ran = collections.Counter()
    for begin, end, processor in spans:
        at = max(0, bisect.bisect_right(begins[processor], begin) - 1)
        for run_begin, run_end, name in runs[processor][at:]:
            if run_begin >= end:
                break
            ran[name] += max(0.0, min(end, run_end) - max(begin, run_begin))
    return ran


def shares(runs, begins, spans):
    """The same as text, by share of their time."""
    ran = ran_in(runs, begins, spans)
    total = sum(ran.values()) or 1
    return ", ".join(f"{name} {100 * time / total:.0f} %" for name, time in ran.most_common(8))


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4
    least = float(sys.argv[2]) / 1e6 if len(sys.argv) > 2 else 150e-6
    meant = re.compile(sys.argv[3] if len(sys.argv) > 3 else "^kvorum:(net|commit|worker)|^load-")
    runs, waits = read(traced(seconds))
    begins = {cpu: [begin for begin, _, _ in all_runs] for cpu, all_runs in runs.items()}
    long = [wait for wait in waits if wait[1] - wait[0] >= least and meant.search(wait[2])]
    by_why = collections.Counter(why for *_, why in long)
    print(f"{len(long)} waits of {1e6 * least:.0f} us and more: {dict(by_why)}")
    print("  who ran there:", shares(runs, begins, [wait[:2] + (wait[3],) for wait in long]))
    others = [wait[:2] + (cpu,) for wait in long for cpu in runs if cpu != wait[3]]
    print("  and elsewhere:", shares(runs, begins, others))
    by_name = collections.defaultdict(list)
    for begin, end, name, *_ in waits:
        by_name[name].append(1e6 * (end - begin))
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:12]:
        times.sort()
        p99, p999 = (times[int(len(times) * share)] for share in (0.99, 0.999))
        print(f"{name:18} {len(times):7} waits, mean {sum(times) / len(times):4.0f} us, p99 {p99:5.0f}, p99.9 {p999:6.0f}, "
              f"max {times[-1]:6.0f}")


if __name__ == "__main__":
    main()
