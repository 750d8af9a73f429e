#!/usr/bin/env bash
# What CI runs of the simulation: SEEDS seeds made of FROM, every seed that ever failed, some seeds twice, and every
# canary. One build for all of it, then about three minutes on two cores. FROM stays the same from commit to commit for
# as long as fresh seeds still find something now and then (docs/reports): a change is judged by what it breaks. Fresh
# seeds: `bash scripts/sim.sh $(git rev-parse HEAD)`, or `make soak`.
set -uo pipefail
cd "$(dirname "$0")/.."
from=${1:-kvorum-1}
cargo build --profile sim --locked -p kvorum-sim --features canaries || exit 1
sim=${CARGO_TARGET_DIR:-target}/sim/kvorum-sim
result=0
"$sim" ci --seeds "${SEEDS:-240}" --from "$from" || result=1
"$sim" canaries || result=1
[ $result -eq 0 ] || echo "FAILED: see above"
exit $result
