#!/usr/bin/env bash
# Measures the clients against one cluster of three nodes on this machine, with wrk in the same run: operations per second
# and latencies (us, p50 / p99 / p99.9) of reads and writes of 100 bytes on 10,000 keys. Needs what `make release`,
# `mvn -f clients/java/pom.xml package` and `cargo build --release -p kvorum-client --example bench` make, and wrk. Each row
# ends with the hypervisor's steal and the load average at its end.
#
#   scripts/bench-clients.sh wrk|java|rust…   what to measure, in this order, such as `wrk java`
#   REPLICAS=1/1   IN_FLIGHT="64 1024"   ROUTING="true false"   SECONDS_PER_ROW=6   PORT=24350   KVORUM=…
#   WARM_UPS=2     iterations of half a row before two that count, for JMH    BENCHMARK=get|put   only that, likewise
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cluster.sh

port=${PORT:-24350}
replicas=${REPLICAS:-1/1}
seconds=${SECONDS_PER_ROW:-6}
find_kvorum
KVORUM=$(realpath "$KVORUM")
target=${CARGO_TARGET_DIR:-target}
urls=http://127.0.0.1:$port,http://127.0.0.1:$((port + 1)),http://127.0.0.1:$((port + 2))
for node in 0 1 2; do
  "$KVORUM" serve --listen "127.0.0.1:$((port + node))" --cluster "$urls" --data-dir "$work/$node" \
    --threads 1 >"$work/$node.log" 2>&1 &
  children+=("$!")
done
for node in 0 1 2; do wait_ready $((port + node)) 2; done

row() { # TEXT: with steal since `before`, and the load average
  # shellcheck disable=SC2086 # Two numbers.
  printf '%s %s | %s |\n' "$1" "$(steal_since $before)" "$(cut -d ' ' -f 1 /proc/loadavg)"
}

cat >"$work/keys.lua" <<'LUA'
local value = string.rep("v", 100)
request = function()
  local target = "/v0/entity?id=bench-" .. math.random(0, 9999) .. "&replicas=" .. os.getenv("REPLICAS")
  return wrk.format(os.getenv("METHOD"), target, nil, os.getenv("METHOD") == "PUT" and value or nil)
end
done = function(summary, latency)
  local bad = summary.errors.status + summary.errors.read + summary.errors.write + summary.errors.timeout
  -- The key of a GET may be none that was written yet: that is a 404, which is no failure.
  io.write(string.format("%.0f | %d / %d / %d | %d\n", summary.requests * 1e6 / summary.duration,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), bad))
end
LUA

run_wrk() {
  local in_flight method before
  # Writes first, so that reads find something.
  for in_flight in $1; do
    for method in PUT GET; do
      before=$(stolen)
      METHOD=$method REPLICAS=$replicas wrk -t1 "-c$in_flight" "-d${seconds}s" -s "$work/keys.lua" \
        "http://127.0.0.1:$port" >"$work/wrk.out"
      row "| wrk, one node | $method | $in_flight | $(tail -1 "$work/wrk.out") |"
    done
  done
}

run_rust() {
  local in_flight routing before line
  for in_flight in $1; do
    for routing in $2; do
      before=$(stolen)
      "$target/release/examples/bench" "$urls" "$in_flight" "$routing" "$((seconds / 2))" "$replicas" >"$work/rust.out"
      while IFS= read -r line; do row "| Rust $line"; done <"$work/rust.out"
    done
  done
}

run_java() {
  local before
  before=$(stolen)
  java -jar clients/java/bench/target/kvorum-bench.jar -jvmArgsAppend "-Dkvorum.nodes=$urls" -p "replicas=$replicas" \
    -p "inFlight=${1// /,}" -p "routing=${2// /,}" -wi "${WARM_UPS:-2}" -w "$((seconds / 2))" -i 2 -r "$((seconds / 2))" "${BENCHMARK:-.}" >"$work/java.out"
  grep -E '^# (Benchmark|Parameters)|^Iteration' "$work/java.out"
  row "| Java | all of the above |"
}

in_flight=${IN_FLIGHT:-64 1024}
routing=${ROUTING:-true false}
echo "three nodes, --durability always, replicas $replicas"
for what in "$@"; do
  case $what in
    wrk | rust | java) "run_$what" "$in_flight" "$routing" ;;
    *) echo "no such client: $what"; exit 2 ;;
  esac
done
