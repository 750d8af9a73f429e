#!/usr/bin/env bash
# Large values beyond saturation: goodput of PUTs (of GETs with METHOD=get) of 8 MiB and 1 MiB at growing numbers of
# connections, for each BINARY in turn, ROUNDS times. Three processes with durability as it is by default, the driver
# beside them; steal is printed.
# [METHOD=get] [ROUNDS=2] [CASES="BYTES,CONNECTIONS ..."] scripts/large.sh BINARY...
set -euo pipefail
rounds=${ROUNDS:-2}
cases=${CASES:-8388608,2 8388608,32 8388608,200 1048576,32 1048576,64 1048576,200}
port=${PORT:-25300}
method=${METHOD:-put}
prefill=()
[ "$method" = put ] || prefill=(--prefill)
urls=(http://127.0.0.1:$port http://127.0.0.1:$((port + 1)) http://127.0.0.1:$((port + 2)))
list=$(IFS=,; echo "${urls[*]}")
nodes=()
data=
stop() {
    [ ${#nodes[@]} -eq 0 ] || kill "${nodes[@]}" 2> /dev/null || true
    wait
    [ -z "$data" ] || rm -rf "$data"
    nodes=() data=
}
trap stop EXIT
steal() { awk '/^cpu /{print $9}' /proc/stat; }
for round in $(seq "$rounds"); do
    for binary in "$@"; do
        data=$(mktemp -d)
        for node in 0 1 2; do
            "$binary" serve --cluster "$list" --listen "127.0.0.1:$((port + node))" --data-dir "$data/$node" \
                2> "$data/log-$node" &
            nodes+=($!)
        done
        until curl -fs -m 1 -o /dev/null "${urls[0]}/v0/status?ready=quorum"; do sleep 0.2; done
        sleep 1
        for case in $cases; do
            before=$(steal)
            report=$("$binary" bench "$method" "${urls[@]}" ${prefill[@]+"${prefill[@]}"} -c "${case#*,}" -d 12s \
                --value-size "${case%,*}" --keys 40 2>&1 || true)
            good=$(sed -n 's/^Requests\/sec: *//p' <<< "$report")
            refused=$(sed -n 's/^ *Non-2xx or 3xx responses: *//p' <<< "$report")
            echo "round $round $(basename "$binary"): ${case%,*} bytes, ${case#*,} connections: $good/s; refused ${refused:-0};" \
                "steal $(($(steal) - before)) ticks"
            sleep 2
        done
        stop
    done
done
