#!/usr/bin/env bash
# What CI runs of the simulation: SEEDS fresh seeds made of FROM, every seed that ever failed, some seeds twice, every
# canary, and `determinism.rs`. One profile for all of it. FROM is the commit's hash: another commit has other seeds, and
# the same one has the same seeds each time. `bash scripts/sim.sh TEXT` takes those made of TEXT.
set -uo pipefail
cd "$(dirname "$0")/.."
# A tree without its history has seeds as well.
from=${1:-$(git rev-parse HEAD 2>/dev/null || echo no-commit)}
# The test's build has the program as well; `cargo build` would build the node once more, with other features of libraries.
determinism="cargo test --profile sim --locked -p kvorum-sim --features canaries --test determinism"
$determinism --no-run || exit 1
sim=${CARGO_TARGET_DIR:-target}/sim/kvorum-sim
result=0
"$sim" ci --seeds "${SEEDS:-240}" --from "$from" || result=1
"$sim" canaries || result=1
# Whole traces of seeds that are run twice.
$determinism || result=1
[ $result -eq 0 ] || echo "FAILED: see above"
exit $result
