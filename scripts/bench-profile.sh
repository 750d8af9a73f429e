#!/usr/bin/env bash
# What a profile costs a node while it runs: requests per second and CPU microseconds per request of one node with one network
# thread, `--durability os`, under wrk, without a profile and with each, in alternation. The node has one core, wrk another.
# Naming the stacks comes after the window and is not in the figures. The last columns are wrk's own CPU microseconds per
# request and the hypervisor's steal.
#
#   ROUNDS=3   SECONDS_PER_ROW=4   PORT=24360   METHODS="GET PUT"   KVORUM=…
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/cluster.sh

port=${PORT:-24360}
seconds=${SECONDS_PER_ROW:-4}
serve_alone "$port"

cat >"$work/put.lua" <<'LUA'
wrk.method, wrk.body = "PUT", string.rep("v", 100)
request = function() return wrk.format(nil, "/v0/entity?id=any-" .. math.random(0, 99999)) end
LUA
curl -sf -X PUT --data-binary "$(printf 'v%.0s' {1..100})" "http://127.0.0.1:$port/v0/entity?id=hot"

# utime and stime are scaled by the kernel to the exact run time of all threads; a tick is 1/100 s.
ticks() { awk '{ print $14 + $15 }' "/proc/$node/stat"; }

echo "| | profile | requests/s | node, µs/request | wrk, µs/request | samples, bytes or µs | steal |"
echo "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
for _ in $(seq "${ROUNDS:-3}"); do
  for method in ${METHODS:-GET PUT}; do
    for event in none cpu none alloc none lock; do
      profile=
      if [ "$event" != none ]; then
        "$KVORUM" profile --event "$event" --seconds $((seconds + 1)) --format collapsed --url "http://127.0.0.1:$port" >"$work/stacks" &
        profile=$!
        sleep 0.3
      fi
      words=("http://127.0.0.1:$port/v0/entity?id=hot")
      [ "$method" = PUT ] && words=(-s "$work/put.lua" "http://127.0.0.1:$port")
      stolen_before=$(stolen)
      before=$(ticks)
      TIMEFORMAT='%U %S'
      { time taskset -c 1 wrk -t1 -c64 "-d${seconds}s" "${words[@]}" >"$work/wrk.out"; } 2>"$work/wrk.cpu"
      after=$(ticks)
      # shellcheck disable=SC2086 # Two numbers.
      steal=$(steal_since $stolen_before)
      total=
      if [ -n "$profile" ]; then
        wait "$profile"
        total=$(awk '{ sum += $NF } END { print sum + 0 }' "$work/stacks")
      fi
      requests=$(awk '/requests in/{ print $1 }' "$work/wrk.out")
      awk -v method=$method -v event=$event -v requests="$requests" -v ticks=$((after - before)) -v total="$total" \
        -v steal="$steal" \
        -v rate="$(awk '/Requests\/sec/{ print $2 }' "$work/wrk.out")" -v wrk="$(awk '{ print $1 + $2 }' "$work/wrk.cpu")" 'BEGIN {
        printf "| %s | %s | %.0f | %.2f | %.2f | %s | %s |\n", method, event, rate, ticks * 1e4 / requests, wrk * 1e6 / requests, total, steal }'
    done
  done
done
