#!/usr/bin/env bash
# Builds the documentation as a site with mdbook, and follows every link in it.
#
#   scripts/docs.sh OUT_DIR
#
# Needs mdbook and python3; without them it prints SKIPPED. Loads nothing from elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: $0 OUT_DIR" >&2; exit 2; }
for tool in mdbook python3; do
  command -v $tool >/dev/null || { echo "SKIPPED docs: no $tool here"; exit 0; }
done
mkdir -p "$1"
out=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp docs/book/book.toml "$work/"
mkdir "$work/src"
# The pages keep their places, so their links hold; pictures and files that they link to come along.
git ls-files --cached --others --exclude-standard -- '*.md' docs deploy bench scripts | sort -u | while read -r file; do
  [ -f "$file" ] || continue
  mkdir -p "$work/src/$(dirname "$file")"
  cp "$file" "$work/src/$file"
done
rm -rf "$work/src/docs/book"
sed -e 's|](\.\./\.\./|](|' -e 's|](\.\./|](docs/|' docs/book/SUMMARY.md >"$work/src/SUMMARY.md"
python3 scripts/docs_stage.py "$work/src"
mdbook build "$work" --dest-dir "$work/site"
python3 scripts/docs_check.py "$work/site"
rm -rf "$out/docs"
cp -r "$work/site" "$out/docs"
echo "docs: $out/docs/index.html"
