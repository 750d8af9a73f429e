#!/usr/bin/env bash
# Runs YCSB's workloads A to F against a cluster that runs already, and prints a table.
#
#   clients/java/ycsb/run.sh URL,URL,URL [RECORDS] [SECONDS] [THREADS]
#
# Needs what `mvn package` makes here. Every row has the hypervisor's steal and the share of the time in which somebody
# on this machine waited for a processor, because on a shared machine a figure without them says little. EXTRA takes more of YCSB's arguments, such as "-p kvorum.routing=false".
set -euo pipefail
cd "$(dirname "$0")"

nodes=${1:?the URLs of the nodes, with commas between}
records=${2:-20000}
seconds=${3:-10}
threads=${4:-32}
jar=target/kvorum-ycsb.jar
out=$(mktemp)
trap 'rm -f "$out"' EXIT

ycsb() { # PHASE WORKLOAD
    # shellcheck disable=SC2086 # EXTRA is several words.
    java -XX:+UseSerialGC -Djava.util.concurrent.ForkJoinPool.common.parallelism=2 -jar "$jar" "$1" \
        -db io.kvorum.ycsb.KvorumDb -P "workloads/$2.properties" -p kvorum.nodes="$nodes" \
        -p recordcount="$records" -p operationcount=100000000 -p maxexecutiontime="$seconds" \
        -p measurementtype=hdrhistogram -p hdrhistogram.percentiles=50,95,99 -threads "$threads" ${EXTRA:-} >"$out" 2>&1
    # YCSB ends well also where it could not begin.
    grep -q '^\[OVERALL\], Throughput' "$out" || { cat "$out" >&2; exit 1; }
}
# Ticks stolen, ticks in all, microseconds in which somebody waited, microseconds now.
stat() {
    awk '/^cpu /{ printf "%s %s ", $9, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9 }' /proc/stat
    awk '/^some/{ sub("total=", "", $5); printf "%s ", $5 }' /proc/pressure/cpu
    date +%s%6N
}
percent() { awk -v part="$1" -v whole="$2" 'BEGIN { printf "%.1f", 100 * part / whole }'; }
row() { # NAME, the four of stat before, the four after
    awk -F ', ' -v name="$1" -v steal="$(percent $(($6 - $2)) $(($7 - $3)))" \
        -v waited="$(percent $(($8 - $4)) $(($9 - $5)))" '
        function add(text) { cells = cells (cells == "" ? "" : "; ") text }
        $1 == "[OVERALL]" && $2 ~ /Throughput/ { rate = $3 }
        $2 == "Operations" && $1 !~ /CLEANUP|GC/ { operation = substr($1, 2, length($1) - 2) }
        $1 == "[" operation "]" && $2 ~ /50thPercentile/ { p50 = $3 }
        $1 == "[" operation "]" && $2 ~ /95thPercentile/ { p95 = $3 }
        $1 == "[" operation "]" && $2 ~ /99thPercentile/ {
            add(sprintf("%s %.1f / %.1f / %.1f", operation, p50 / 1000, p95 / 1000, $3 / 1000))
        }
        $2 ~ /^Return=/ && $2 != "Return=OK" { bad += $3 }
        END { printf "| %s | %.0f | %s | %d | %s %% | %s %% |\n", name, rate, cells, bad, steal, waited }' "$out"
}

echo "| workload | operations/s | latency ms, p50 / p95 / p99 | not OK | steal | CPU awaited |"
echo "| --- | ---: | --- | ---: | ---: | ---: |"
before=$(stat)
# Loading ends with the last record, not with the clock.
seconds=600 ycsb -load a
# shellcheck disable=SC2046,SC2086 # Four numbers each.
row load $before $(stat)
for workload in a b c f d e; do
    before=$(stat)
    ycsb -t "$workload"
    # shellcheck disable=SC2046,SC2086
    row "${workload^^}" $before $(stat)
done
