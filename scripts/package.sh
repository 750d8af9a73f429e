#!/usr/bin/env bash
# Makes packages of a binary: `deb` for Debian and Ubuntu, or `tarball` with checksums for any Linux with glibc. Its symbols, which
# only profiles need, are a package of their own: kvorum-dbgsym, or an archive that is unpacked over the other.
#
#   scripts/package.sh deb|tarball BINARY OUT_DIR
#
# The binary needs only glibc and libgcc.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 3 ] || { echo "usage: $0 deb|tarball BINARY OUT_DIR" >&2; exit 2; }
kind=$1 binary=$(realpath "$2") out=$3
mkdir -p "$out"
out=$(realpath "$out")
version=$(sed -nE '/^\[workspace.package\]/,/^\[/ s/^version = "(.*)"/\1/p' Cargo.toml)
machine=$(uname -m)
# A build of the same commit makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The libraries that the binary needs must be those that the package names.
needed=$(readelf -d "$binary" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | grep -vE '^(libc|libm|libgcc_s|ld-linux.*|libdl|libpthread|librt)\.so' || true)
[ -z "$needed" ] || { echo "FAILED: the binary needs $needed" >&2; exit 1; }
glibc=$(readelf -V "$binary" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1 | sed 's/GLIBC_//')

# Profiles find the symbols by the name in the program, or by its build id.
objcopy --only-keep-debug "$binary" "$work/kvorum.debug"
objcopy --strip-debug --strip-unneeded --add-gnu-debuglink="$work/kvorum.debug" "$binary" "$work/kvorum"
build_id=$(readelf -n "$work/kvorum" | sed -nE 's/.*Build ID: ([0-9a-f]+).*/\1/p')
[ -n "$build_id" ] || { echo "FAILED: the binary has no build id" >&2; exit 1; }

mkdir -p "$work/man"
"$binary" man "$work/man"
for shell in bash zsh fish; do "$binary" completions $shell >"$work/kvorum.$shell"; done

# unit BINARY_PATH: the unit for a package, with its own user instead of one that systemd makes up at each start.
unit() {
  sed -e "s#^ExecStart=/usr/local/bin/kvorum#ExecStart=$1#" \
    -e 's/^DynamicUser=yes$/User=kvorum\nGroup=kvorum/' deploy/kvorum.service
}

case $kind in
deb)
  case $machine in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$machine ;; esac
  root=$work/root
  doc=$root/usr/share/doc/kvorum
  install -D -m 755 "$work/kvorum" "$root/usr/bin/kvorum"
  install -D -m 644 deploy/debian-kvorum.toml "$root/etc/kvorum/kvorum.toml"
  mkdir -p "$root/usr/lib/systemd/system"
  unit /usr/bin/kvorum >"$root/usr/lib/systemd/system/kvorum.service"
  install -D -m 644 "$work/kvorum.bash" "$root/usr/share/bash-completion/completions/kvorum"
  install -D -m 644 "$work/kvorum.zsh" "$root/usr/share/zsh/vendor-completions/_kvorum"
  install -D -m 644 "$work/kvorum.fish" "$root/usr/share/fish/vendor_completions.d/kvorum.fish"
  for page in "$work"/man/*.1; do install -D -m 644 "$page" "$root/usr/share/man/man1/$(basename "$page")"; done
  gzip -9n "$root"/usr/share/man/man1/*.1
  install -D -m 644 -t "$doc" README.md docs/operating.md docs/http-api.md docs/security.md
  install -D -m 644 -t "$doc/examples" deploy/kvorum.toml deploy/alerts.yml deploy/grafana/kvorum.json
  install -m 644 LICENSE "$doc/copyright"
  gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
  mkdir -p "$root/DEBIAN"
  echo /etc/kvorum/kvorum.toml >"$root/DEBIAN/conffiles"
  size=$(du -sk --exclude=DEBIAN "$root" | cut -f1)
  cat >"$root/DEBIAN/control" <<CONTROL
Package: kvorum
Version: $version
Architecture: $architecture
Maintainer: kvorum <kvorum@localhost>
Installed-Size: $size
Depends: libc6 (>= $glibc), libgcc-s1, passwd
Section: database
Priority: optional
Description: replicated key-value store behind plain HTTP
 Every node answers every request for every key, with a quorum per request.
 The store repairs and refills itself.
CONTROL
  install -m 755 -t "$root/DEBIAN" deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm
  (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$work/md5sums"
  mv "$work/md5sums" "$root/DEBIAN/md5sums"
  find "$root" -type d -exec chmod 755 {} +
  chmod 644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control" "$root/DEBIAN/conffiles" "$root/usr/lib/systemd/system/kvorum.service" "$doc/changelog.gz"
  packages=("kvorum_${version}_$architecture.deb" "kvorum-dbgsym_${version}_$architecture.deb")
  dpkg-deb --root-owner-group ${DEB_COMPRESSION:--Zxz} --build "$root" "$out/${packages[0]}" >/dev/null
  symbols=$work/symbols
  install -D -m 644 "$work/kvorum.debug" "$symbols/usr/lib/debug/.build-id/${build_id:0:2}/${build_id:2}.debug"
  mkdir -p "$symbols/DEBIAN"
  cat >"$symbols/DEBIAN/control" <<CONTROL
Package: kvorum-dbgsym
Version: $version
Architecture: $architecture
Maintainer: kvorum <kvorum@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$symbols" | cut -f1)
Depends: kvorum (= $version)
Section: debug
Priority: optional
Description: symbols of kvorum
 Profiles of a node need them to name its functions.
CONTROL
  find "$symbols" -type d -exec chmod 755 {} +
  dpkg-deb --root-owner-group ${DEB_COMPRESSION:--Zxz} --build "$symbols" "$out/${packages[1]}" >/dev/null
  ;;
tarball)
  name=kvorum-$version-$machine-linux
  root=$work/$name
  install -D -m 755 "$work/kvorum" "$root/bin/kvorum"
  install -D -m 644 -t "$root/share/man/man1" "$work"/man/*.1
  install -D -m 644 "$work/kvorum.bash" "$root/share/bash-completion/completions/kvorum"
  install -D -m 644 "$work/kvorum.zsh" "$root/share/zsh/site-functions/_kvorum"
  install -D -m 644 "$work/kvorum.fish" "$root/share/fish/vendor_completions.d/kvorum.fish"
  install -D -m 644 -t "$root/share/doc/kvorum" README.md LICENSE CHANGELOG.md docs/operating.md docs/http-api.md docs/security.md
  install -D -m 644 -t "$root/share/doc/kvorum/examples" deploy/kvorum.service deploy/kvorum.toml deploy/alerts.yml deploy/grafana/kvorum.json
  echo "Needs Linux on $machine with glibc $glibc or newer, and libgcc. Unpack into /usr/local: tar -xf $name.tar.gz -C /usr/local --strip-components=1" \
    >"$root/share/doc/kvorum/INSTALL"
  install -D -m 644 "$work/kvorum.debug" "$work/symbols/$name/bin/.debug/kvorum.debug"
  packages=("$name.tar.gz" "$name-symbols.tar.gz")
  # pack FOLDER PACKAGE
  pack() { tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -n >"$out/$2"; }
  pack "$work" "${packages[0]}"
  pack "$work/symbols" "${packages[1]}"
  ;;
*)
  echo "no such package: $kind" >&2
  exit 2
  ;;
esac
# One line for each package in the directory.
for package in "${packages[@]}"; do
  (cd "$out" && touch SHA256SUMS && { grep -vF "  $package" SHA256SUMS; sha256sum "$package"; } >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
  echo "$out/$package"
done
