#!/usr/bin/env bash
# Runs every test there is and lists what was skipped, and why. Needs cargo and a C++ compiler; what single tests
# need beyond that (root for mounts and networks, strace, faketime, nft, python3) they look for themselves, and say so where it is missing.
set -uo pipefail
cd "$(dirname "$0")/.."
log=${CARGO_TARGET_DIR:-target}/test.log
mkdir -p "$(dirname "$log")"

# Tools for faults: failing system calls, other clocks, networks of one's own.
missing=()
command -v strace >/dev/null || missing+=(strace)
command -v faketime >/dev/null || missing+=(faketime)
command -v nft >/dev/null || missing+=(nftables)
command -v ip >/dev/null || missing+=(iproute2)
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}, for the tests of faults"
  { apt-get update && apt-get install -y "${missing[@]}"; } >/dev/null 2>&1 ||
    echo "${missing[*]} could not be installed"
fi

# Output of passing tests is kept, so that a skip inside one is seen below.
cargo test --workspace --locked -- --show-output >"$log" 2>&1
result=$?
if [ $result -ne 0 ]; then
  cat "$log"
else
  grep -E '^(     Running|   Doc-tests|test result:)|^(counts|figures):' "$log"
fi

fuzz_seconds=${FUZZ_SECONDS:-5}
if [ "$fuzz_seconds" -gt 0 ]; then
  bash fuzz/run.sh "$fuzz_seconds" || result=1
fi

# Seeds of the simulation, those that once failed, and the bugs that it must notice. SIM_SEEDS=0 leaves it out.
if [ "${SIM_SEEDS:-240}" -gt 0 ]; then
  SEEDS=${SIM_SEEDS:-240} bash scripts/sim.sh || result=1
fi

grep -hE '^KNOWN LIMIT' "$log" | sort -u
skipped=$(grep -E '^ *SKIPPED' "$log" | sort -u)
passed=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
failed=$(awk '/^test result:/ { sum += $6 } END { print sum + 0 }' "$log")
if [ -n "$skipped" ]; then
  printf '\nSkipped on this machine:\n%s\n' "$skipped"
else
  printf '\nNothing was skipped.\n'
fi
[ $result -eq 0 ] || echo "FAILED: see above, or $log"
echo "$passed passed, $failed failed"
exit $result
