#!/usr/bin/env bash
# `make bench`: the figures of docs/reports, measured here and now. Arguments go to the suite: --quick, --only
# get,put,range,memory,paced,cluster, --markdown FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked -p kvorum -p kvorum-lab
"$target/release/kvorum-bench-suite" --kvorum "$target/release/kvorum" --scratch "${SCRATCH:-/var/tmp}" "$@"
# The cost of TLS, and of three processes, where all is measured.
if [ $# -eq 0 ] && command -v python3 >/dev/null; then
  python3 scripts/tls_cost.py "$target/release/kvorum" --rounds 2 --rotations 0
  # Three processes, as users run them.
  python3 scripts/processes.py "$target/release/kvorum"
  # What a condition costs.
  python3 scripts/conditional_cost.py "$target/release/kvorum"
  # The same of what users would pick instead, where it is installed.
  python3 scripts/peers.py "$target/release/kvorum"
fi
