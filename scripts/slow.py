#!/usr/bin/env python3
"""Says which requests of a load are slow, and who runs on each processor while they are.

    scripts/slow.py [SECONDS [MILLISECONDS]]

Traces, for SECONDS (7), when the driver (`kvorum bench`, one connection a request) sends and receives, and the
scheduler; then shows requests of at least MILLISECONDS (4). Those that overlap are one cluster. A cluster is put down to
the thread that ran the longest meanwhile, of those that no request waits for, if that was a fifth of its time at least.
Needs root and the kernel's tracefs. Latencies are from the call that sends to the one that receives: what a request waits
for in the driver before that is not in them.
"""
import collections
import re
import sys

from waits import EVENTS, ran_in, read, tell, traced

CALLS = ("syscalls/sys_enter_sendto", "syscalls/sys_enter_recvfrom", "syscalls/sys_exit_recvfrom")
DRIVER = 'comm ~ "load-*"'
CALL = re.compile(r"-(\d+)\s+\[\d+\].* (\d+\.\d+): sys_(sendto|recvfrom)(\(fd: (\w+)| -> 0x(\w+))")
SERVING = re.compile(r"^kvorum:(net|commit|worker)|^load-|^swapper")
# Two clusters with less than this between them, in seconds, are one.
JOINED = 0.002


def requests(lines, calls):
    """Passes `lines` on; adds the driver's requests to `calls`, as (sent, received)."""
    sent, reading = {}, {}
    for line in lines:
        match = CALL.search(line)
        if not match:
            yield line
            continue
        thread, at, name, _, socket, result = match.groups()
        if name == "sendto":
            sent[(thread, socket)] = float(at)
        elif socket:
            reading[thread] = socket
        elif (begun := sent.get((thread, reading.get(thread)))) and 0 < int(result, 16) < 1 << 31:
            calls.append((begun, float(at)))
            del sent[(thread, reading[thread])]


def clusters(slow):
    """Requests that overlap, as [begin, end, how many]."""
    found = []
    for begin, end in sorted(slow):
        if found and begin < found[-1][1] + JOINED:
            found[-1][1] = max(found[-1][1], end)
            found[-1][2] += 1
        else:
            found.append([begin, end, 1])
    return found


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 7
    least = float(sys.argv[2]) / 1e3 if len(sys.argv) > 2 else 0.004
    calls = []
    try:
        for event in CALLS:
            tell(f"events/{event}/filter", DRIVER)
        runs, _ = read(requests(traced(seconds, EVENTS + CALLS), calls))
    finally:
        for event in CALLS:
            tell(f"events/{event}/filter", "0")
    begins = {cpu: [begin for begin, _, _ in all_runs] for cpu, all_runs in runs.items()}
    times = sorted(1e3 * (end - begin) for begin, end in calls) or [0.0]
    p50, p99, p999 = (times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.99, 0.999))
    slow = clusters(call for call in calls if call[1] - call[0] >= least)
    print(f"{len(calls)} requests: p50 {p50:.2f}, p99 {p99:.2f}, p99.9 {p999:.2f}, max {times[-1]:.2f} ms; "
          f"{sum(many for *_, many in slow)} of {1e3 * least:g} ms and more, in {len(slow)} clusters")
    blamed = collections.defaultdict(list)
    first = min((begin for begin, _ in calls), default=0)
    for begin, end, many in slow:
        by_place = {(cpu, name): time for cpu in runs
                    for name, time in ran_in(runs, begins, [(begin, end, cpu)]).items()}
        by_name = collections.Counter()
        for (_, name), time in by_place.items():
            if not SERVING.search(name):
                by_name[name.split("/")[0]] += time
        name, time = (by_name.most_common(1) or [("", 0)])[0]
        blamed[name if time >= (end - begin) / 5 else "nobody else"].append((many, end - begin))
        told = ", ".join(f"{cpu} {name} {1e3 * time:.1f}" for (cpu, name), time in
                         sorted(by_place.items(), key=lambda item: -item[1])[:6])
        print(f"  at {begin - first:.3f} s for {1e3 * (end - begin):.1f} ms, {many} requests; ms by processor: {told}")
    for name, its in sorted(blamed.items(), key=lambda item: -sum(many for many, _ in item[1])):
        print(f"{name}: {sum(many for many, _ in its)} requests in {len(its)} clusters, "
              f"{1e3 * sum(length for _, length in its):.0f} ms")


if __name__ == "__main__":
    main()
