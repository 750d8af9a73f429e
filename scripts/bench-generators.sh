#!/usr/bin/env bash
# Lays `kvorum bench` beside other load generators, against one node with one network thread on a core of its own; the
# generators, one after the other on the other core, get the same key.
#
#   scripts/bench-generators.sh rate     latencies at a fixed rate (open loop), beside vegeta: a line a run, in alternation
#   scripts/bench-generators.sh closed   CPU microseconds per request as fast as possible, beside wrk
#   VEGETA=vegeta   RATES="2000 10000"   ROUNDS=3   SECONDS_PER_ROW=8   PORT=24370   KVORUM=…
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cluster.sh

port=${PORT:-24370}
seconds=${SECONDS_PER_ROW:-8}
serve_alone "$port"
url=http://127.0.0.1:$port
target="$url/v0/entity?id=key-000000000000"
"$KVORUM" bench get -t1 -c1 -d100ms --keys 1 --prefill "$url" >"$work/prefill.out"

# on_core COMMAND…: its output into `$work/out`, its CPU seconds into `cpu`, the hypervisor's steal meanwhile into `steal`.
on_core() {
  local before TIMEFORMAT='%U %S'
  before=$(stolen)
  { time taskset -c 1 "$@" >"$work/out" 2>"$work/err"; } 2>"$work/cpu"
  # shellcheck disable=SC2086 # Two numbers.
  steal=$(steal_since $before)
  cpu=$(awk '{ print $1 + $2 }' "$work/cpu")
}
per_request() { awk -v cpu="$cpu" -v requests="$1" 'BEGIN { printf "%.2f", cpu * 1e6 / requests }'; }

rate() {
  local rate requests
  echo "| | rate/s | requests | p50 / p90 / p99 / p99.9 / max, µs | CPU µs/request | steal |"
  echo "| --- | ---: | ---: | --- | ---: | ---: |"
  for _ in $(seq "${ROUNDS:-3}"); do
    for rate in ${RATES:-2000 10000}; do
      on_core "$KVORUM" bench get -t1 -c64 "-d${seconds}s" "-R$rate" --keys 1 --json "$work/run.json" "$url"
      python3 - "$work/run.json" "$rate" "$(per_request $((rate * seconds)))" "$steal" <<'PY'
import json, sys
stream = json.load(open(sys.argv[1]))["streams"][0]
nanos = stream["latency"]["nanos"]
cells = " / ".join(f"{nanos[p] / 1e3:.0f}" for p in ["p50", "p90", "p99", "p99.9", "p100"])
print(f"| kvorum bench | {sys.argv[2]} | {stream['succeeded']} | {cells} | {sys.argv[3]} | {sys.argv[4]} |")
PY
      echo "GET $target" >"$work/targets"
      on_core "${VEGETA:-vegeta}" attack -targets "$work/targets" -rate "$rate/s" -duration "${seconds}s" -connections 64 -workers 64 -output "$work/run.bin"
      "${VEGETA:-vegeta}" encode -to csv -output "$work/run.csv" "$work/run.bin"
      python3 - "$work/run.csv" "$rate" "$(per_request $((rate * seconds)))" "$steal" <<'PY'
import csv, math, sys
rows = [(int(row[1]), int(row[2])) for row in csv.reader(open(sys.argv[1]))]
# Latencies of what succeeded, and its number, as `kvorum bench` gives them.
nanos = sorted(latency for status, latency in rows if status == 200)
at = lambda percent: nanos[max(0, math.ceil(len(nanos) * percent / 100) - 1)]
cells = " / ".join(f"{at(p) / 1e3:.0f}" for p in [50, 90, 99, 99.9, 100])
print(f"| vegeta | {sys.argv[2]} | {len(nanos)} | {cells} | {sys.argv[3]} | {sys.argv[4]} |")
PY
    done
  done
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
    rate | closed) "$what" ;;
    *) echo "no such comparison: $what"; exit 2 ;;
  esac
done
