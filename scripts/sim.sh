#!/usr/bin/env bash
# What CI runs of the simulation: SEEDS fresh seeds, made of the commit's hash so that a rerun is the same, or of the
# text that is given; every seed that ever failed; some seeds twice; and every canary. One build for all of it, then
# about three minutes on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
from=${1:-$(git rev-parse HEAD)}
cargo build --profile sim --locked -p kvorum-sim --features canaries || exit 1
sim=${CARGO_TARGET_DIR:-target}/sim/kvorum-sim
result=0
"$sim" ci --seeds "${SEEDS:-240}" --from "$from" || result=1
"$sim" canaries || result=1
[ $result -eq 0 ] || echo "FAILED: see above"
exit $result
