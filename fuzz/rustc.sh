#!/bin/sh
# The compiler for `fuzz/run.sh`: what cargo would call, with counters of coverage in the code of this workspace. They are
# those that cargo-fuzz asks for, without a sanitizer: this is safe code, and what is looked for are panics and wrong answers.
rustc=$1
shift
case " $* " in
*" --crate-name build_script_build "*) exec "$rustc" "$@" ;;
esac
exec "$rustc" "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
