//! Tells the build which compiler makes it, for `kvorum_build_info`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said =
        Command::new(rustc).arg("--version").output().ok().and_then(|it| String::from_utf8(it.stdout).ok());
    // "rustc 1.90.0 (1159e78c4 2025-09-14)"
    let version = said.as_deref().and_then(|text| text.split_whitespace().nth(1)).unwrap_or("unknown");
    println!("cargo::rustc-env=KVORUM_RUSTC={version}");
}
