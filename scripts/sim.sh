#!/usr/bin/env bash
# What CI runs of the simulation: SEEDS fresh seeds made of FROM, every seed that ever failed, some seeds twice, and every
# canary. FROM is the commit's hash: another commit has other seeds, and the same one has the same seeds each time.
# `bash scripts/sim.sh TEXT` takes those made of TEXT.
set -uo pipefail
cd "$(dirname "$0")/.."
# A tree without its history has seeds as well.
from=${1:-$(git rev-parse HEAD 2>/dev/null || echo no-commit)}
# The program as `cargo test` builds it. `cargo build` would give libraries other features, and build the node once more.
cargo test --workspace --locked --test determinism --no-run || exit 1
sim=${CARGO_TARGET_DIR:-target}/debug/kvorum-sim
result=0
"$sim" ci --seeds "${SEEDS:-120}" --from "$from" || result=1
"$sim" canaries || result=1
[ $result -eq 0 ] || echo "FAILED: see above"
exit $result
