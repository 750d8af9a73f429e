#!/usr/bin/env bash
# ab.sh OLD NEW [--rounds N] [--only LOADS]: two binaries of kvorum, three processes each, interleaved; the spread between two runs of NEW
# stands beside the difference (scripts/processes.py).
set -euo pipefail
exec python3 "$(dirname "$0")/processes.py" "$2" "$1" "${@:3}"
