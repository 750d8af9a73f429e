#!/usr/bin/env bash
# Runs every test there is, in all languages, and lists what was skipped, and why. Needs cargo and a C++ compiler; what
# others need beyond that (root for mounts and networks, strace, faketime, nft, python3, a JDK with Maven, Go, Node.js,
# nginx, HAProxy) they look for or install themselves, and say so where it is missing. All of them run the node that
# `cargo test` built.
#
#   FUZZ_SECONDS=5      for each fuzz target; 0 leaves them out, and says so
#   SIM_SEEDS=120       seeds of the simulation; 0 likewise
#   TEST_MINUTES=50     after which cargo's tests count as hung
#   OPENAPI_SECONDS=8   for each of three rounds of requests from the OpenAPI document; 0 likewise
set -uo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(realpath "$target")
log=$target/test.log
rm -f "$target"/test-*.log
logs=("$log")
left_out=()
# What failed, a line each: told again at the end, where it is found.
failed=()

# Tools for faults: failing system calls, other clocks, networks of one's own.
missing=()
command -v strace >/dev/null || missing+=(strace)
command -v faketime >/dev/null || missing+=(faketime)
command -v nft >/dev/null || missing+=(nftables)
command -v ip >/dev/null || missing+=(iproute2)
# The linter of metrics and alerts.
command -v promtool >/dev/null || missing+=(prometheus)
# A browser for the lab's report.
command -v chromium >/dev/null || missing+=(chromium)
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  { apt-get update && apt-get install -y "${missing[@]}"; } >/dev/null 2>&1 ||
    echo "${missing[*]} could not be installed"
fi

# The profiler of JVMs, for a test of the lab, which itself fetches nothing.
profiler=tools.profiler:async-profiler:4.5
if command -v mvn >/dev/null && [ ! -d ~/.m2/repository/tools/profiler/async-profiler/4.5 ]; then
  echo "fetching $profiler, for the lab's test"
  mvn -q -B dependency:get -Dartifact=$profiler >/dev/null 2>&1 || echo "$profiler could not be fetched"
fi

# That of Python programs, for another.
if command -v python3 >/dev/null && ! command -v py-spy >/dev/null; then
  tools=$target/python-tools
  if [ ! -x "$tools/bin/py-spy" ]; then
    echo "installing py-spy into $tools, for the lab's test"
    { python3 -m venv "$tools" && "$tools/bin/pip" install -q --disable-pip-version-check --retries 1 'py-spy>=0.4,<1'; } \
      >/dev/null 2>&1 || echo "py-spy could not be installed"
  fi
  PATH=$PATH:$tools/bin
fi

# All is built at once. Nothing runs beside the tests of nodes: even at low priority it makes real nodes miss their deadlines.
cargo test --workspace --locked --no-run >"$log" 2>&1
result=$?
if [ $result -ne 0 ]; then
  cat "$log"
  echo "FAILED: the build"
  exit $result
fi

# Output of passing tests is kept, so that a skip inside one is seen below.
# No test may hang: what is not done by then is, and the log names it ("has been running for over 60 seconds").
# Tests of nodes wait for a third of their time, so there are half as many more threads than processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 3 / 2))}
timeout --kill-after=10 "${TEST_MINUTES:-50}m" cargo test --workspace --locked --no-fail-fast -- --show-output >"$log" 2>&1
result=$?
if [ $result -eq 124 ]; then
  # A test that has no result after a minute is named; its result would come on a line of its own.
  sed -nE 's/^test (.*) has been running for over 60 seconds$/\1/p' "$log" | sort -u >"$log.long"
  sed -nE 's/^test (.*) \.\.\. (ok|FAILED)$/\1/p' "$log" | sort -u | comm -23 "$log.long" - >"$log.hung"
  printf '\nFAILED: the tests hang: %s\n' "$(paste -sd' ' "$log.hung")" >>"$log"
fi
if [ $result -ne 0 ]; then
  cat "$log"
else
  grep -E '^(     Running|   Doc-tests|test result:)|^(counts|figures):' "$log"
fi

# run NAME COMMAND…: another suite; its output is kept, and shown where it fails.
run() {
  local name=$1 begun=$SECONDS
  shift
  logs+=("$target/test-$name.log")
  if "$@" >"$target/test-$name.log" 2>&1; then
    echo "$name: done in $((SECONDS - begun)) s"
  else
    cat "$target/test-$name.log"
    echo "FAILED: $name"
    failed+=("$name")
    result=1
  fi
}

node=$target/debug/kvorum
if [ -x "$node" ]; then
  KVORUM_BINARY=$node run java bash scripts/java.sh
  KVORUM=$node run recipes bash scripts/recipes.sh
  KVORUM=$node run proxies bash scripts/proxies.sh
  run packages bash scripts/package_check.sh "$node"
  run image bash scripts/image_check.sh "$node"
  run docs bash scripts/docs.sh "$target/site"
  run deploy python3 scripts/deploy_check.py "$node"
  if [ "${OPENAPI_SECONDS:-8}" -gt 0 ]; then
    KVORUM=$node SECONDS_PER_ROUND=${OPENAPI_SECONDS:-8} run openapi bash scripts/openapi.sh
  else
    left_out+=("SKIPPED openapi: OPENAPI_SECONDS=0")
  fi
else
  failed+=("$node was not built: nothing that needs a node was run")
  result=1
fi

fuzz_seconds=${FUZZ_SECONDS:-5}
if [ "$fuzz_seconds" -gt 0 ]; then
  bash fuzz/run.sh "$fuzz_seconds" || {
    failed+=("fuzz")
    result=1
  }
else
  left_out+=("SKIPPED fuzz: FUZZ_SECONDS=0")
fi

# Seeds of the simulation, those that once failed, and the bugs that it must notice. SIM_SEEDS=0 leaves it out.
if [ "${SIM_SEEDS:-120}" -gt 0 ]; then
  SEEDS=${SIM_SEEDS:-120} run sim bash scripts/sim.sh
  grep -hE '^seed|caught by|seeds of' "$target/test-sim.log"
else
  left_out+=("SKIPPED sim: SIM_SEEDS=0")
fi

grep -hE '^KNOWN LIMIT' "${logs[@]}" | sort -u
skipped=$({ grep -hE '^ *SKIPPED' "${logs[@]}"; printf '%s\n' "${left_out[@]}"; } | sed '/^ *$/d' | sort -u)
# cargo's sums, and Maven's, which has one line a module without the time that lines of single classes have.
sums=$({ sed -nE 's/^test result:.* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' "$log" "$target"/test-sim.log 2>/dev/null
  sed -nE '/Time elapsed/d; s/.*Tests run: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+), Skipped: ([0-9]+).*/\1 \2 \3 \4/p' \
    "$target/test-java.log" 2>/dev/null | awk '{ print $1 - $2 - $3 - $4, $2 + $3 }'; } |
  awk '{ passed += $1; failed += $2 } END { print passed + 0, failed + 0 }')
if [ -n "$skipped" ]; then
  printf '\nSkipped on this machine:\n%s\n' "$skipped"
else
  printf '\nNothing was skipped.\n'
fi
if [ $result -ne 0 ]; then
  # Each failed test with what it said, since a log that is cut for its length has its end only.
  sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$log" | head -n 20 | while read -r name; do
    echo "FAILED: $name"
    grep -hA 12 -F "thread '$name'" "$log" | grep -vE '^ +([0-9]+:|at )|^stack backtrace:' | cut -c-400 | sed 's/^/  /'
  done
  grep -h '^FAILED: the tests hang' "$log"
  sed -nE '/ NOT SHOWN: | GOT AWAY |^seed [0-9]+ breaks/s/^/FAILED: /p' "$target"/test-sim.log 2>/dev/null
  for name in "${failed[@]}"; do
    echo "FAILED: $name"
    # The simulation has a line for each failure above.
    [ "$name" = sim ] || tail -n 25 "$target/test-$name.log" 2>/dev/null | sed 's/^/  /'
  done
  echo "More is above, or in $log and $target/test-*.log"
fi
echo "${sums% *} passed, ${sums#* } failed"
exit $result
