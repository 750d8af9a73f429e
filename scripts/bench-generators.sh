#!/usr/bin/env bash
# Lays `kvorum bench` beside other load generators, against one node with one network thread on a core of its own; the
# generators, one after the other on the other core, get the same key by 64 connections.
#
#   scripts/bench-generators.sh rate     latencies at a fixed rate (open loop), beside oha and vegeta, in alternation
#   scripts/bench-generators.sh stall    the same while the node stands still for 200 ms: who sees the late requests?
#   scripts/bench-generators.sh closed   CPU microseconds per request as fast as possible, beside wrk
#   RATES="2000 10000 20000"   ROUNDS=3   SECONDS_PER_ROW=5   PORT=24370   KVORUM=…   OHA=…   VEGETA=…
#
# oha (a crate) and vegeta (a Go module) are built once, into `kvorum-generators` of the user's cache; wrk is a package of
# the distribution. A WRK2 that is there already takes part, too.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cluster.sh

port=${PORT:-24370}
seconds=${SECONDS_PER_ROW:-5}
url=http://127.0.0.1:$port
target="$url/v0/entity?id=key-000000000000"
tools=${XDG_CACHE_HOME:-$HOME/.cache}/kvorum-generators

find_generators() {
  mkdir -p "$tools"
  OHA=${OHA:-$tools/bin/oha}
  if [ ! -x "$OHA" ]; then
    CARGO_TARGET_DIR=$work/oha cargo install oha@1.16.0 --locked --root "$tools"
  fi
  VEGETA=${VEGETA:-$tools/bin/vegeta}
  if [ ! -x "$VEGETA" ]; then
    # As a dependency of a module of our own: `go install` would ask for a list of versions that not every proxy has.
    mkdir "$work/vegeta"
    printf 'module vegeta\ngo 1.21\nrequire github.com/tsenart/vegeta/v12 v12.12.0\n' >"$work/vegeta/go.mod"
    printf '//go:build tools\n\npackage tools\n\nimport _ "github.com/tsenart/vegeta/v12"\n' >"$work/vegeta/tools.go"
    (cd "$work/vegeta" && go mod tidy && go build -o "$VEGETA" github.com/tsenart/vegeta/v12)
  fi
}

# on_core COMMAND…: its output into `$work/out`, its CPU seconds into `cpu`, the hypervisor's steal meanwhile into `steal`. A
# generator that complains (`kvorum bench` of a rate that was not kept) is told of, and its figures stand.
on_core() {
  local before complains='' TIMEFORMAT='%U %S'
  before=$(stolen)
  { time taskset -c 1 "$@" >"$work/out" 2>"$work/err" || complains=yes; } 2>"$work/cpu"
  [ -z "$complains" ] || cat "$work/err" >&2
  # shellcheck disable=SC2086 # Two numbers.
  steal=$(steal_since $before)
  cpu=$(awk '{ print $1 + $2 }' "$work/cpu")
}
per_request() { awk -v cpu="$cpu" -v requests="$1" 'BEGIN { printf "%.2f", cpu * 1e6 / requests }'; }

names() { echo "bench oha vegeta${WRK2:+ wrk2}"; }

# How long a generator runs: the first 10 s of wrk2 are for its calibration, and in no figure.
length_of() { if [ "$1" = wrk2 ]; then echo $((seconds + 11)); else echo "$seconds"; fi; }

# one RATE NAME: a line for each figure of a run, with one thread where a generator can be told: name, rate, requests that
# succeeded, p50, p90, p99, p99.9, max in µs, CPU µs by request, steal.
one() {
  local rate=$1 name=$2 length
  length=$(length_of "$name")
  case $name in
    bench) on_core "$KVORUM" bench get -t1 -c64 "-d${length}s" "-R$rate" --keys 1 --json "$work/run.json" "$url" ;;
    oha) on_core "$OHA" --no-tui --output-format csv -c 64 -z "${length}s" -q "$rate" --latency-correction -w "$target" ;;
    vegeta)
      echo "GET $target" >"$work/targets"
      # Without a bound it opens a connection for whatever has no answer yet, until the node refuses more (503).
      on_core "$VEGETA" attack -targets "$work/targets" -rate "$rate/s" -duration "${length}s" \
        -workers 64 -max-workers 64 -connections 64 -max-connections 64 -output "$work/run.bin"
      "$VEGETA" encode -to csv -output "$work/run.csv" "$work/run.bin"
      ;;
    wrk2) on_core "$WRK2" -t1 -c64 "-d${length}s" "-R$rate" -U "$target" ;;
  esac
  python3 - "$work" "$name" "$rate" "$(per_request $((rate * length)))" "$steal" <<'PY'
import csv, json, math, re, sys
work, name, rate, cpu, steal = sys.argv[1:]
def line(name, requests, micros):
    print("\t".join([name, rate, str(requests), *(f"{value:.0f}" for value in micros), cpu, steal]))
def of(seconds):
    seconds = sorted(seconds)
    at = lambda percent: seconds[max(0, math.ceil(len(seconds) * percent / 100) - 1)] * 1e6
    return len(seconds), [at(percent) for percent in (50, 90, 99, 99.9, 100)]
if name == "bench":
    stream = json.load(open(f"{work}/run.json"))["streams"][0]
    for counted, name in (("latency", "kvorum bench"), ("uncorrected", "kvorum bench, from sending")):
        nanos = stream[counted]["nanos"]
        line(name, stream["succeeded"], [nanos[p] / 1e3 for p in ("p50", "p90", "p99", "p99.9", "p100")])
elif name == "oha":
    rows = csv.DictReader(open(f"{work}/out"))
    line("oha", *of([float(row["request-duration"]) for row in rows if row["status"] == "200"]))
elif name == "vegeta":
    rows = csv.reader(open(f"{work}/run.csv"))
    line("vegeta, from sending", *of([int(row[2]) / 1e9 for row in rows if row[1] == "200"]))
else:
    scale = {"us": 1, "ms": 1e3, "s": 1e6}
    text = open(f"{work}/out").read()
    for part, name in zip(text.split("Latency Distribution")[1:], ("wrk2", "wrk2, from sending")):
        seen = {p: float(v) * scale[u] for p, v, u in re.findall(r"([\d.]+)%\s+([\d.]+)(us|ms|s)\b", part)}
        count = re.search(r"Total count    =\s+(\d+)", part)[1]
        line(name, count, [seen[p] for p in ("50.000", "90.000", "99.000", "99.900", "100.000")])
PY
}

# summary: a table of `$work/rows`: of each figure the median of the rounds, and the lowest and highest.
summary() {
  python3 - "$work/rows" <<'PY'
import sys
from collections import defaultdict
from statistics import median
runs = defaultdict(list)
for line in open(sys.argv[1]):
    name, rate, *figures, steal = line.rstrip("\n").split("\t")
    runs[int(rate), name].append([float(figure) for figure in figures])
def cell(values):
    middle, low, high = median(values), min(values), max(values)
    form = lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return form(middle) if low == high else f"{form(middle)} ({form(low)} to {form(high)})"
print("| rate/s | | rounds | requests | p50 | p90 | p99 | p99.9 | max | CPU µs/request |")
print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
for (rate, name), rows in sorted(runs.items(), key=lambda item: item[0][0]):
    print(f"| {rate:,} | {name} | {len(rows)} |", " | ".join(cell(column) for column in zip(*rows)), "|")
PY
}

rate() {
  local rate name
  : >"$work/rows"
  for _ in $(seq "${ROUNDS:-3}"); do
    for rate in ${RATES:-2000 10000 20000}; do
      for name in $(names); do one "$rate" "$name" | tee -a "$work/rows" >&2; done
    done
  done
  summary
}

# The node is stopped once in each row, for 200 ms by the clock of who stops it. What should be seen is arithmetic: whatever is
# due meanwhile is late by what is left of the stall.
stall() {
  local rate name
  : >"$work/rows"
  for _ in $(seq "${ROUNDS:-3}"); do
    for rate in ${RATES:-2000}; do
      for name in $(names); do
        python3 - "$node" "$(($(length_of "$name") - seconds / 2))" >>"$work/stalls" <<'PY' &
import os, signal, sys, time
time.sleep(float(sys.argv[2]))
os.kill(int(sys.argv[1]), signal.SIGSTOP)
begun = time.monotonic()
time.sleep(0.2)
os.kill(int(sys.argv[1]), signal.SIGCONT)
print(time.monotonic() - begun)
PY
        one "$rate" "$name" | tee -a "$work/rows" >&2
        wait $!
      done
    done
  done
  summary
  echo "the node stood still for $(sort -n "$work/stalls" | sed -n '1p;$p' | xargs printf '%.4f ')s, at least and at most"
}

closed() {
  local requests
  echo "| | connections | requests/s | CPU µs/request | steal |"
  echo "| --- | ---: | ---: | ---: | ---: |"
  for _ in $(seq "${ROUNDS:-3}"); do
    for connections in 64 256; do
      on_core wrk -t1 "-c$connections" "-d${seconds}s" "$target"
      requests=$(awk '/requests in/{ print $1 }' "$work/out")
      echo "| wrk | $connections | $((requests / seconds)) | $(per_request "$requests") | $steal |"
      on_core "$KVORUM" bench get -t1 "-c$connections" "-d${seconds}s" --keys 1 "$url"
      requests=$(awk '/requests in/{ print $1 }' "$work/out")
      echo "| kvorum bench | $connections | $((requests / seconds)) | $(per_request "$requests") | $steal |"
    done
  done
}

for what in "$@"; do
  case $what in
    rate | stall) find_generators ;;
    closed) command -v wrk >/dev/null || apt-get install -y wrk >/dev/null ;;
    *) echo "no such comparison: $what"; exit 2 ;;
  esac
done
serve_alone "$port"
"$KVORUM" bench get -t1 -c1 -d100ms --keys 1 --prefill "$url" >"$work/prefill.out"
for what in "$@"; do "$what"; done
