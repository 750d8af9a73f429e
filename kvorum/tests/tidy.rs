//! Goal: the invariants of ARCHITECTURE.md that can be found in the text of the code stay true.
//! Method: for each module, words that must not occur in its files. Tests within a file are not checked.
#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test reads the source tree, and what cargo prints"
)]

mod tidy_dependencies;
mod tidy_links;
mod tidy_texts;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

struct Rule {
    room: &'static str,
    except: &'static [&'static str],
    forbidden: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        room: "kvorum-core/src",
        except: &[],
        forbidden: &[
            "std::time",
            "std::thread",
            "std::fs",
            "std::net",
            "std::io",
            "std::sync",
            "tokio",
            "getrandom",
        ],
        why: "the core is pure rules: no clock, thread, file, socket or lock",
    },
    Rule {
        room: "kvorum-server/src/storage",
        except: &[],
        forbidden: &["Quorum", "crate::coordinator", "crate::http", "crate::replica", "StatusCode"],
        why: "storage knows no nodes, no quorums and no rooms above it",
    },
    Rule {
        room: "kvorum-server/src/storage",
        except: &["lsm.rs", "held.rs", "reclaim.rs", "snapshots.rs", "uncached.rs"],
        forbidden: &["fjall::"],
        why: "only the LSM engine and the workarounds know fjall",
    },
    Rule {
        room: "kvorum-server/src/replica",
        except: &[],
        forbidden: &["crate::coordinator", "crate::http", ".stamp(", "StatusCode", "fjall"],
        why: "a replica never stamps and calls nobody above it",
    },
    Rule {
        room: "kvorum-server/src/coordinator",
        except: &[],
        forbidden: &["crate::http", "crate::storage", "StatusCode", "fjall"],
        why: "the coordinator knows neither HTTP nor disks",
    },
    Rule {
        room: "kvorum-server/src/background",
        except: &[],
        forbidden: &["crate::http", "crate::storage", "StatusCode", "fjall", ".stamp("],
        why: "background work answers no client, stamps nothing and knows no disks",
    },
    Rule {
        room: "kvorum-server/src/http",
        except: &[],
        forbidden: &["crate::storage", ".stamp(", "fjall"],
        why: "http asks the coordinator; a version is born there",
    },
    Rule {
        room: "kvorum-server/src",
        except: &[
            "supervise.rs",
            // Tasks of a request or a connection.
            "server.rs",
            "link.rs",
            "range.rs",
            "read.rs",
            "write.rs",
            "serve.rs",
            "ballot.rs",
            // Lines of one batch; they end with their requests.
            "batch.rs",
            // The simulation's replacements of the replica's threads; it has no other task.
            "threads.rs",
            // Tests of `peer`.
            "mod.rs",
            "cost.rs",
            "support.rs",
        ],
        forbidden: &["spawn_local("],
        why: "what lives as long as the node is started by its supervisor",
    },
    Rule {
        room: "kvorum-server/src",
        except: &[
            "supervise.rs",
            // The signal's thread, which informs the main thread.
            "signals.rs",
            "workers.rs",
            "sched.rs",
            "cost.rs",
        ],
        forbidden: &["thread::Builder", "thread::spawn"],
        why: "what lives as long as the node is started by its supervisor",
    },
    Rule {
        room: "kvorum-profiler/src",
        except: &[],
        forbidden: &["kvorum_server", "kvorum_core"],
        why: "the profiler knows its process, not what runs in it",
    },
    Rule {
        room: "kvorum-backup/src",
        except: &[],
        forbidden: &["kvorum_core", "kvorum_server", "SystemTime::now"],
        why: "backups go through the public API, and time comes in",
    },
    Rule {
        room: "kvorum-client/src",
        except: &[],
        forbidden: &["kvorum_core", "kvorum_server"],
        why: "the client knows the contract, not the server",
    },
    Rule {
        room: "kvorum-lab/src",
        except: &[],
        forbidden: &["kvorum_core", "kvorum_server"],
        why: "the lab drives real processes",
    },
    Rule {
        room: "kvorum-lab/src/load",
        except: &["replicas.rs"],
        forbidden: &["kvorum_client", "crate::ask"],
        why: "what measures is strict, cheap and without retries: it has its own HTTP",
    },
    Rule {
        room: "kvorum-lab/src",
        except: &["connection.rs", "operation.rs", "worker.rs"],
        forbidden: &["crate::http"],
        why: "what does not measure asks by the client (ask.rs)",
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The lines of a file that are code of the product: no comments, and only the lines before the mark of the
/// test module.
fn product_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn violations(rule: &Rule) -> Vec<String> {
    let mut files = Vec::new();
    rust_files(&root().join(rule.room), &mut files);
    assert!(!files.is_empty(), "{} has no files: the rule looks at nothing", rule.room);
    let mut found = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let is_test = file.components().any(|part| part.as_os_str() == "tests");
        if is_test || rule.except.contains(&name) || ["tests.rs", "contract.rs"].contains(&name) {
            continue;
        }
        for (index, line) in product_lines(&std::fs::read_to_string(&file).unwrap()) {
            for word in rule.forbidden.iter().filter(|word| line.contains(**word)) {
                found.push(format!("{}:{}: {word}: {}", file.display(), index + 1, rule.why));
            }
        }
    }
    found
}

#[test]
fn rooms_keep_to_their_rules() {
    let found: Vec<String> = RULES.iter().flat_map(violations).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The rules can fail: each forbidden word is found where it occurs.
#[test]
fn rules_can_fail() {
    let planted =
        Rule { room: "kvorum-server/src/coordinator", except: &[], forbidden: &[".stamp("], why: "planted" };
    assert!(!violations(&planted).is_empty());
}

/// The rooms of the server, the lowest first. A room uses only rooms before it.
const ROOMS: &[&str] = &[
    "canary",
    "authority",
    "admin_socket",
    "log_limit",
    "log",
    "part",
    "crash",
    "sched",
    "supervise",
    "worker",
    "clock",
    "security",
    "tls",
    "pause",
    "storage",
    "verdict",
    "machine",
    "metrics",
    "history",
    "slow",
    "spans",
    "replica",
    "peer",
    "cluster",
    "membership",
    "coordinator",
    "background",
    "http",
    "config",
    "node",
    "lib",
];

/// The uses of a room above that there are still: (room, room that it uses). The list only gets shorter.
const UPWARD: &[(&str, &str)] = &[
    // The coordinator's shared state holds that of the background services, which is to be theirs.
    ("coordinator", "background"),
];

/// Goal: no room uses a room above it. Method: every `crate::ROOM` in the code against the order above. A use that is gone
/// must go from the list as well.
#[test]
fn rooms_use_only_rooms_below() {
    let place = |room: &str| ROOMS.iter().position(|other| *other == room);
    let mut files = Vec::new();
    let source = root().join("kvorum-server/src");
    rust_files(&source, &mut files);
    let mut upward = BTreeSet::new();
    for file in files {
        let inside = file.strip_prefix(&source).unwrap();
        let room = inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        let own = place(room).unwrap_or_else(|| panic!("{room} has no place among the rooms"));
        if file.file_name().is_some_and(|name| name == "tests.rs")
            || inside.components().any(|part| part.as_os_str() == "tests")
        {
            continue;
        }
        for (_, line) in product_lines(&std::fs::read_to_string(&file).unwrap()) {
            let used = line.split("crate::").skip(1).map(|rest| {
                rest.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_')
                    .next()
                    .unwrap_or_default()
            });
            upward.extend(
                used.filter(|used| place(used).is_some_and(|used| used > own))
                    .map(|used| (room.to_owned(), used.to_owned())),
            );
        }
    }
    let known: BTreeSet<_> =
        UPWARD.iter().map(|(room, used)| ((*room).to_owned(), (*used).to_owned())).collect();
    let new: Vec<_> = upward.difference(&known).collect();
    let gone: Vec<_> = known.difference(&upward).collect();
    assert!(new.is_empty(), "rooms that use a room above them: {new:?}");
    assert!(gone.is_empty(), "no longer so, remove them from the list: {gone:?}");
}

/// Every queue has a named bound: no unbounded channel in the server's modules except `held.rs`, which says why.
#[test]
fn no_unbounded_channels() {
    let rule = Rule {
        room: "kvorum-server/src",
        except: &["held.rs"],
        forbidden: &["unbounded_channel"],
        why: "every queue is bounded",
    };
    assert_eq!(violations(&rule), Vec::<String>::new());
}

/// The list of all texts that users read, so that they can be read in one place.
const TEXTS: &str = "docs/dev/texts.txt";

/// Goal: the list of texts is that of the sources, so a change of a text shows in review beside all others.
/// Method: it is made anew and compared. `KVORUM_WRITE_TEXTS=1` writes it.
#[test]
fn list_of_texts_is_up_to_date() {
    let mut files = Vec::new();
    for room in ["kvorum-server/src", "kvorum/src"] {
        rust_files(&root().join(room), &mut files);
    }
    files.sort();
    files.retain(|file| {
        let is_test =
            file.iter().any(|part| ["tests", "tests.rs", "contract.rs"].iter().any(|name| part == *name));
        // The settings are in the list already, by their table.
        !is_test && !file.ends_with("config/table.rs")
    });
    let texts: Vec<String> = files
        .iter()
        .map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let tests = text.match_indices("#[cfg(test)]\n").find(|(at, mark)| {
                let item = text[at + mark.len()..].lines().next().unwrap_or_default();
                item.contains("mod ") && item.ends_with('{')
            });
            text[..tests.map_or(text.len(), |(at, _)| at)].to_owned()
        })
        .collect();
    let root = root();
    let inside = files.iter().map(|file| file.strip_prefix(&root).unwrap());
    let list = tidy_texts::list(inside.zip(texts.iter().map(String::as_str)));
    let path = root.join(TEXTS);
    if std::env::var_os("KVORUM_WRITE_TEXTS").is_some() {
        std::fs::write(&path, &list).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = known.lines().zip(list.lines()).find(|(known, now)| known != now);
    assert!(
        known == list,
        "{TEXTS} is out of date, first at {differs:?}: read what has changed, then write it by\n\
         KVORUM_WRITE_TEXTS=1 cargo test -p kvorum --test tidy"
    );
}

/// Every page is in the book, once.
#[test]
fn every_page_is_in_the_book() {
    let root = root();
    let summary = root.join("docs/book/SUMMARY.md");
    let mut listed = tidy_links::targets(&summary, &std::fs::read_to_string(&summary).unwrap());
    listed.sort();
    let mut pages = tidy_links::pages(&root);
    pages.retain(|page| *page != summary);
    let mut pages: Vec<_> = pages.iter().map(|page| page.canonicalize().unwrap()).collect();
    pages.sort();
    assert_eq!(listed, pages, "docs/book/SUMMARY.md lists other pages than there are");
}

/// Links between pages lead to a file, and to a heading where they name one.
#[test]
fn links_lead_somewhere() {
    let root = root();
    let pages = tidy_links::pages(&root);
    let broken: Vec<String> = pages
        .iter()
        .flat_map(|page| tidy_links::broken(&root, page, &std::fs::read_to_string(page).unwrap()))
        .collect();
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// Libraries come from the registry, under licences that allow their use; none is banned, and each is there once, or is listed.
#[test]
fn libraries_are_as_agreed() {
    let faults = tidy_dependencies::faults(&root());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
