#!/usr/bin/env bash
# Builds the Java client with all that belongs to it, and runs its tests, also against three real nodes. Needs a JDK (17
# or later) and Maven; the first time, also the repository that Maven takes its plugins from.
#
#   KVORUM_BINARY=…   the node; without it the tests build the release binary and run that
set -uo pipefail
cd "$(dirname "$0")/.."

for tool in javac mvn; do
  if ! command -v $tool >/dev/null; then
    echo "SKIPPED java: no $tool here"
    exit 0
  fi
done
version=$(javac -version 2>&1 | sed -nE 's/^javac ([0-9]+).*/\1/p')
if [ "${version:-0}" -lt 17 ]; then
  echo "SKIPPED java: javac is of version ${version:-unknown}, 17 is needed"
  exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mvn -B -ntp -f clients/java/pom.xml verify 2>&1 | tee "$log"
result=${PIPESTATUS[0]}
# Where plugins cannot be had, no test has failed.
if [ "$result" -ne 0 ] && grep -qE 'ERROR.*(Could not transfer|could not be resolved|Unknown host)' "$log"; then
  echo "SKIPPED java: Maven could not fetch what it needs"
  exit 0
fi
sed -nE '/Time elapsed/d; s/.*Tests run: .*Skipped: ([1-9][0-9]*).*/SKIPPED java: \1 tests, by themselves/p' "$log"
exit "$result"
