#!/bin/sh
# Fuzzes every target for SECONDS each:  fuzz/run.sh SECONDS [TARGET...]
#
# Works with the stable toolchain and without cargo-fuzz. Only the crates of this workspace get coverage, and so are built once
# more; all libraries are those of `cargo test`. Inputs that were found to be interesting stay in fuzz/corpus/TARGET; the seeds in
# fuzz/seeds/TARGET are never changed.
#
# Prints the executions of every target. Fails at the first crash and prints where the input that causes it is.
set -eu
cd "$(dirname "$0")"

seconds=${1:?usage: fuzz/run.sh SECONDS [TARGET...]}
shift
[ $# -gt 0 ] || set -- request_target range_parameters record_format head_scanner \
    peer_frames peer_messages peer_handshake index_log

if ! command -v g++ >/dev/null && ! command -v clang++ >/dev/null && [ -z "${CXX:-}" ]; then
    echo "fuzz/run.sh needs a C++ compiler to build libFuzzer, and there is none: install g++ (or set CXX)" >&2
    exit 2
fi

bins=$(printf -- '--bin %s ' "$@")
# shellcheck disable=SC2086 # a word for each target
RUSTC_WORKSPACE_WRAPPER=$PWD/rustc.sh cargo build --quiet --locked --workspace --features kvorum-fuzz/libfuzzer $bins
programs=${CARGO_TARGET_DIR:-$PWD/../target}/debug

status=0
for target in "$@"; do
    corpus=corpus/$target artifacts=artifacts/$target log=artifacts/$target.log
    mkdir -p "$corpus" "$artifacts"
    if "$programs/$target" "$corpus" "seeds/$target" \
        -max_total_time="$seconds" -max_len=2048 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$artifacts/" >"$log" 2>&1; then
        executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        echo "$target: $executions executions, $covered edges covered, no crash"
    else
        echo "$target: CRASH" >&2
        grep -A 4 -E "^thread .* panicked|^==[0-9]+== ERROR|ALARM" "$log" | grep -v '^==.*libFuzzer: deadly' >&2 ||
            tail -n 20 "$log" >&2
        reproducer=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        echo "$target: reproducer in $PWD/$reproducer" >&2
        echo "$target: again with: $programs/$target $PWD/$reproducer" >&2
        status=1
        break
    fi
done
exit $status
