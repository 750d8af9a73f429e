//! The libraries that a build for this machine uses, as cargo resolves them: where they come from, under which licences, and which of
//! them are there in several versions.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Licences that a library may have. All let anybody use it beside Apache-2.0.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// Libraries that may have another licence, and why.
const OTHER_LICENCES: &[(&str, &str, &str)] = &[(
    "inferno",
    "CDDL-1.0",
    "draws flame graphs; its files are used unchanged, which is all that the licence asks for",
)];
/// Libraries that must not come in, not by another one either.
const BANNED: &[(&str, &str)] = &[
    ("openssl-sys", "TLS is rustls: nothing depends on the system's libraries"),
    ("native-tls", "likewise"),
];
/// Libraries that a build compiles in several versions, and who needs the older ones.
const SEVERAL: &[(&str, &str)] = &[
    ("base64", "all of the project; pem, which reads certificates, needs the newer one"),
    ("getrandom", "ring and ahash"),
    ("hashbrown", "dashmap and quick_cache, both of the storage engine"),
    ("rand", "stateright, turmoil and rand_distr, of tests and the simulation"),
    ("rand_core", "likewise"),
    ("syn", "macros of asn1-rs, enum_dispatch and tracing"),
];

/// What is wrong with the libraries of the workspace at `root`, a line each.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let metadata = metadata(root);
    let used: BTreeSet<&str> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| text(&node["id"])).collect();
    let is_used = |package: &&Value| used.contains(text(&package["id"])) && !package["source"].is_null();
    let packages: Vec<&Value> = list(&metadata["packages"]).iter().filter(is_used).collect();
    assert!(packages.len() > 100, "cargo names the libraries: {}", packages.len());
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    let mut faults = Vec::new();
    for package in packages {
        let (name, licence) = (text(&package["name"]), text(&package["license"]));
        *versions.entry(name).or_default() += 1;
        if !text(&package["source"]).starts_with("registry+") {
            faults.push(format!("{name} does not come from the registry"));
        }
        let is_known = OTHER_LICENCES.iter().any(|(other, its, _)| (*other, *its) == (name, licence));
        if !is_known && !is_allowed(licence) {
            faults.push(format!("{name} has the licence {licence:?}"));
        }
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            faults.push(format!("{name} is banned: {why}"));
        }
    }
    for (name, count) in &versions {
        if (*count > 1) != SEVERAL.iter().any(|(several, _)| several == name) {
            faults.push(format!("{name} is there in {count} versions: see SEVERAL"));
        }
    }
    faults
}

fn metadata(root: &Path) -> Value {
    let version = Command::new("rustc").arg("-vV").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Libraries for other systems have not been fetched.
    let arguments = ["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// Whether an expression of licences (SPDX 2.3, annex D; `/` is an old form of OR) lets anybody choose allowed ones only.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let mut groups: Vec<Group> = vec![Group::default()];
    while let Some(word) = words.next() {
        let Some(group) = groups.last_mut() else { return false };
        match word {
            "AND" => {}
            "OR" => group.next_alternative(),
            "(" => groups.push(Group::default()),
            ")" => {
                let is_inner_allowed = groups.pop().is_some_and(|inner| inner.is_allowed());
                let Some(outer) = groups.last_mut() else { return false };
                outer.needs(is_inner_allowed);
            }
            licence => {
                let with = words.next_if_eq(&"WITH").and_then(|_| words.next());
                let name = with.map_or_else(|| licence.to_owned(), |with| format!("{licence} WITH {with}"));
                group.needs(LICENCES.contains(&name.as_str()));
            }
        }
    }
    groups.len() == 1 && groups.iter().all(Group::is_allowed)
}

/// What stands between two parentheses: alternatives, each of licences that all hold.
#[derive(Default)]
struct Group {
    is_any_allowed: bool,
    /// Whether all licences of the alternative of now are allowed; none before the first.
    now: Option<bool>,
}

impl Group {
    fn needs(&mut self, is_allowed: bool) {
        self.now = Some(self.now.unwrap_or(true) && is_allowed);
    }

    fn next_alternative(&mut self) {
        self.is_any_allowed |= self.now.take() == Some(true);
    }

    fn is_allowed(&self) -> bool {
        self.is_any_allowed || self.now == Some(true)
    }
}

#[test]
fn licences_are_chosen() {
    for allowed in [
        "MIT",
        "Apache-2.0/MIT",
        "Apache-2.0 OR GPL-2.0-only",
        "GPL-2.0-only OR Apache-2.0 WITH LLVM-exception",
        "(MIT OR GPL-3.0) AND Unicode-3.0",
        "GPL-3.0 OR (MIT AND ISC)",
    ] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT OR ISC) AND GPL-3.0",
        "Apache-2.0 WITH Other",
        "(MIT",
        "MIT)",
        "OR",
    ] {
        assert!(!is_allowed(refused), "{refused}");
    }
}
