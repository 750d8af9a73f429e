#!/usr/bin/env bash
# Installs the Debian package into a root of its own, uses it, upgrades, removes and purges it; and unpacks the tarball.
#
#   scripts/package_check.sh BINARY
#
# Needs root (for chroot) and dpkg; without them it prints SKIPPED. The root has nothing but dpkg, a shell and what the
# package's scripts need, copied from this machine, and dpkg's own list of the libraries that the package depends on.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in dpkg dpkg-deb chroot readelf objcopy useradd man gzip; do
  command -v $tool >/dev/null || [ $tool = man ] || { echo "SKIPPED packages: $tool is not there"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "SKIPPED packages: a chroot needs root"; exit 0; }
[ -f /var/lib/dpkg/status ] || { echo "SKIPPED packages: this machine has no dpkg packages"; exit 0; }
. scripts/root.sh "$1"

DEB_COMPRESSION="-Zgzip -z1" bash scripts/package.sh deb "$binary" "$work/out" >/dev/null
bash scripts/package.sh tarball "$binary" "$work/out" >/dev/null
(cd "$work/out" && sha256sum --quiet -c SHA256SUMS) || fail "the checksums do not fit"
[ "$(wc -l <"$work/out/SHA256SUMS")" = 4 ] || fail "SHA256SUMS has not a line for each package"
deb=$(ls "$work"/out/kvorum_*.deb)
tarball=$(ls "$work"/out/*-linux.tar.gz)

# A root with the tools that dpkg and the package's scripts call, and their libraries.
root=$work/root
mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,lib,lib64,etc,dev,proc,tmp,var/lib/dpkg/{info,updates},var/log,usr/lib}
put() {
  local file
  for file in "$@"; do
    [ -e "$root$file" ] && continue
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
    # The libraries, each at the path under which the loader looks for it.
    { ldd "$file" 2>/dev/null || true; } | { grep -oE '/[^ ]+' || true; } | while read -r library; do
      mkdir -p "$root$(dirname "$library")"
      [ -e "$root$library" ] || cp -L "$library" "$root$library"
    done
  done
}
for tool in sh dpkg dpkg-deb dpkg-split dpkg-query dpkg-divert diff tar gzip xz rm rmdir mkdir chown chmod getent useradd userdel groupadd cat ls ldconfig start-stop-daemon setpriv id; do
  path=$(command -v $tool || ls /sbin/$tool /usr/sbin/$tool 2>/dev/null | head -1 || true)
  [ -n "$path" ] || continue
  put "$path"
done
# The libraries of the packages that kvorum depends on.
for library in /lib/*/libc.so.6 /lib/*/libm.so.6 /lib/*/libgcc_s.so.1; do put "$library"; done
for library in /lib/*/libnss_files.so.2 /lib/*/libpam*.so* /lib/*/security/pam_rootok.so; do [ -e "$library" ] && put "$library"; done
[ -e "$root/bin/sh" ] || { put "$(readlink -f /bin/sh)"; cp -L /bin/sh "$root/bin/sh"; }
# `command -v` finds programs in one of the merged directories only.
for tool in "$root"/usr/bin/* "$root"/usr/sbin/*; do
  [ -e "$root/bin/$(basename "$tool")" ] || cp "$tool" "$root/bin/"
done
mknod -m 666 "$root/dev/null" c 1 3 2>/dev/null || touch "$root/dev/null"
chmod 1777 "$root/tmp"
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
: >"$root/etc/shadow"
: >"$root/etc/gshadow"
printf 'passwd: files\ngroup: files\nshadow: files\n' >"$root/etc/nsswitch.conf"
# What the package depends on counts as installed, in the versions of this machine: dpkg judges the dependencies.
for package in libc6 libgcc-s1 gcc-12-base libcrypt1 passwd; do
  dpkg-query -s "$package" 2>/dev/null | grep -vE '^(Pre-Depends|Depends|Recommends|Conffiles| /)' && echo || true
done >"$root/var/lib/dpkg/status"
cp "$deb" "$root/tmp/kvorum.deb"
cp "$work"/out/kvorum-dbgsym_*.deb "$root/tmp/dbgsym.deb"
in_root() { PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"; }

# Installed.
in_root dpkg -i /tmp/kvorum.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "the package cannot be installed"; }
grep -q 'systemctl enable --now kvorum' "$work/log" || fail "the installation does not say how to go on"
in_root dpkg -s kvorum | grep -q '^Status: install ok installed' || fail "dpkg does not list the package"
for file in /usr/bin/kvorum /etc/kvorum/kvorum.toml /usr/lib/systemd/system/kvorum.service /usr/share/man/man1/kvorum.1.gz \
  /usr/share/man/man1/kvorum-serve.1.gz /usr/share/bash-completion/completions/kvorum \
  /usr/share/zsh/vendor-completions/_kvorum /usr/share/fish/vendor_completions.d/kvorum.fish /usr/share/doc/kvorum/copyright; do
  [ -s "$root$file" ] || fail "$file is not installed"
done
in_root getent passwd kvorum >/dev/null || fail "there is no user kvorum"
[ "$(stat -c %a "$root/var/lib/kvorum")" = 700 ] || fail "others can look into the data directory"
in_root /usr/bin/kvorum --version | grep -q '^kvorum ' || fail "the program does not run with the libraries of the package"
unit=$root/usr/lib/systemd/system/kvorum.service
grep -q '^User=kvorum$' "$unit" && ! grep -q DynamicUser "$unit" || fail "the unit does not use the package's user"
bash -n "$root/usr/share/bash-completion/completions/kvorum"
zgrep -q 'slow\\-request' "$root/usr/share/man/man1/kvorum-serve.1.gz" || fail "the manual does not have the flags of serve"
if command -v systemd-analyze >/dev/null; then
  systemd-analyze verify --root="$root" "$unit" 2>&1 | grep -i 'kvorum.*\(unknown\|invalid\|failed to parse\)' && fail "systemd does not take the unit" || true
fi

# A node by the unit's own words, as its user, serves.
mount -t proc proc "$root/proc" 2>/dev/null || true
words=$(sed -n 's/^ExecStart=//p' "$unit")
start() {
  PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot --userspec=kvorum:kvorum "$root" $words --listen "127.0.0.1:$port" --memory-budget 16MiB 2>"$work/node.log" &
  node=$!
  serves "the installed node"
}
stop() {
  kill -TERM "$node" && wait "$node" || fail "the installed node does not end with 0"
  node=
}
# Whether a profile of the node names its functions. Allocations are sampled, so there are many.
names() {
  "$work/kvorum" profile --event alloc --seconds 3 --format collapsed -o "$work/profile" --url "http://127.0.0.1:$port" >/dev/null &
  local profile=$!
  for _ in $(seq 20); do head -c 4000000 /dev/zero | "$work/kvorum" put large --url "http://127.0.0.1:$port" >/dev/null; done
  wait $profile
  [ -s "$work/profile" ] || fail "the profile is empty"
  grep -q 'kvorum_server::' "$work/profile"
}
start
[ -z "$(find "$root/var/lib/kvorum" -user 0)" ] || fail "data belongs to root"
! names || fail "the program has its symbols in it"
stop
in_root dpkg -i /tmp/dbgsym.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "the symbols cannot be installed"; }
start
names || fail "the installed symbols are not found"
stop
in_root dpkg -P kvorum-dbgsym >"$work/log" 2>&1 || { cat "$work/log"; fail "the symbols cannot be removed"; }
# A build without optimisation is larger.
case $binary in */release/*) [ "$(stat -c %s "$root/usr/bin/kvorum")" -le $((20 << 20)) ] || fail "the program has more than 20 MiB" ;; esac
umount "$root/proc" 2>/dev/null || true

# Installed again over changed settings: they stay. Removed: settings and data stay. Purged: the data stays.
echo '# changed' >>"$root/etc/kvorum/kvorum.toml"
in_root dpkg -i --force-confold /tmp/kvorum.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "the package cannot be upgraded"; }
grep -q '^# changed' "$root/etc/kvorum/kvorum.toml" || fail "an upgrade overwrote the settings"
grep -q 'one node after the other' "$work/log" || fail "the upgrade does not say how to go on"
in_root dpkg -r kvorum >"$work/log" 2>&1 || { cat "$work/log"; fail "the package cannot be removed"; }
[ ! -e "$root/usr/bin/kvorum" ] && [ -e "$root/etc/kvorum/kvorum.toml" ] || fail "removing leaves the program or takes the settings"
in_root dpkg -P kvorum >"$work/log" 2>&1 || { cat "$work/log"; fail "the package cannot be purged"; }
grep -q 'data in /var/lib/kvorum' "$work/log" || fail "the purge does not say that the data is kept"
[ -n "$(ls -A "$root/var/lib/kvorum")" ] || fail "the purge destroyed the data"
left=$(find "$root" -path "$root/var/lib/kvorum" -prune -o -path "$root/tmp" -prune -o -name '*kvorum*' -print)
[ -z "$left" ] || fail "the purge leaves $left"
# Without data nothing is left, not even the user.
rm -rf "$root/var/lib/kvorum"
in_root dpkg -i /tmp/kvorum.deb >/dev/null 2>&1
in_root dpkg -P kvorum >/dev/null 2>&1
[ ! -e "$root/var/lib/kvorum" ] || fail "the purge leaves an empty data directory"
! in_root getent passwd kvorum >/dev/null || fail "the purge leaves the user"

# The tarball runs where it is unpacked.
mkdir "$work/local"
tar -xf "$tarball" -C "$work/local" --strip-components=1
tar -xf "$work"/out/*-symbols.tar.gz -C "$work/local" --strip-components=1
"$work/local/bin/kvorum" --version | grep -q '^kvorum ' || fail "the program of the tarball does not run"
[ -s "$work/local/share/man/man1/kvorum.1" ] && [ -s "$work/local/share/doc/kvorum/INSTALL" ] || fail "the tarball lacks files"
[ -s "$work/local/bin/.debug/kvorum.debug" ] || fail "the archive of symbols lacks them"
echo "packages: installed, upgraded, removed and purged; $(du -h "$deb" | cut -f1) deb, $(du -h "$tarball" | cut -f1) tarball"
