//! The table of settings, in the order of the help.

use super::Draft;
use super::values::{parse_durability, parse_duration, parse_factor, parse_number, parse_size, parse_urls};
use crate::coordinator::Fanout;
use crate::log::LogFormat;
use crate::membership::{parse_weight, parse_zone};
use crate::peer::{PeerAuthMode, Protocols};
use crate::replica::Execution;
use crate::security::AuthMode;
use crate::spans::Endpoint;
use crate::tls::TlsMode;
use std::path::PathBuf;

/// A setting.
pub struct Setting {
    /// Its name, as in the flag.
    pub name: &'static str,
    /// Its former names. Each is still accepted wherever the name is, with a warning, and is shown nowhere.
    pub old_names: &'static [&'static str],
    /// The placeholder for its value in the help.
    pub value_name: &'static str,
    /// Its default value as text; empty for none.
    pub default: &'static str,
    /// The description in the help.
    pub help: &'static str,
    pub(super) set: fn(&mut Draft, &str) -> Result<(), String>,
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "listen",
        old_names: &[],
        value_name: "ADDRESS",
        default: "127.0.0.1:8080",
        help: "Listen on this address and port",
        set: |draft, text| {
            set(
                &mut draft.config.listen,
                text.parse().map_err(|_| "not an IP address and port, such as 127.0.0.1:8080".into()),
            )
        },
    },
    Setting {
        name: "data-dir",
        old_names: &[],
        value_name: "DIR",
        default: "./data",
        help: "Keep this node's data in this directory; the node creates it if it does not exist",
        set: |draft, text| match text {
            "" => Err("a directory is needed".into()),
            dir => set(&mut draft.config.data_dir, Ok(PathBuf::from(dir))),
        },
    },
    Setting {
        name: "cluster",
        old_names: &[],
        value_name: "URL,URL,…",
        default: "",
        help: "URLs of all nodes, this one included; without it the node is a cluster of one",
        set: |draft, text| set(&mut draft.config.cluster, parse_urls(text)),
    },
    Setting {
        name: "join",
        old_names: &[],
        value_name: "URL,URL,…",
        default: "",
        help: "URLs of members of a cluster: this node waits, with an empty store, until a plan names it (kvorum cluster plan add)",
        set: |draft, text| set(&mut draft.config.join, parse_urls(text)),
    },
    Setting {
        name: "advertise",
        old_names: &[],
        value_name: "URL",
        default: "",
        help: "URL at which other nodes reach this one, as in their lists; needed where --listen does not tell, and for a node that was started alone and is to grow",
        set: |draft, text| {
            let urls = parse_urls(text)?;
            match <[String; 1]>::try_from(urls) {
                Ok([url]) => set(&mut draft.advertise, Ok(Some(url))),
                Err(urls) if urls.is_empty() => Ok(()),
                Err(_) => Err("one URL is needed".into()),
            }
        },
    },
    Setting {
        name: "zone",
        old_names: &[],
        value_name: "ZONE",
        default: "",
        help: "Failure domain of this node when it joins a cluster: copies of a key are in different zones; a member's is changed by kvorum cluster plan zone",
        set: |draft, text| {
            let zone = if text.is_empty() { Ok(None) } else { parse_zone(text).map(Some) };
            set(&mut draft.config.place.zone, zone)
        },
    },
    Setting {
        name: "weight",
        old_names: &[],
        value_name: "N",
        default: "",
        help: "Share of the data in proportion to the other nodes' when this node joins a cluster, 1 where nothing says otherwise; a member's is changed by kvorum cluster plan weight",
        set: |draft, text| {
            let weight = if text.is_empty() { Ok(None) } else { parse_weight(text).map(Some) };
            set(&mut draft.config.place.weight, weight)
        },
    },
    Setting {
        name: "cluster-name",
        old_names: &[],
        value_name: "NAME",
        default: "kvorum",
        help: "Name of the cluster; nodes with another name are refused",
        set: |draft, text| {
            let is_name = (1..=64).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            let name = if is_name {
                Ok(text.to_owned())
            } else {
                Err("allowed are 1 to 64 letters, digits, - _ .".into())
            };
            set(&mut draft.config.cluster_name, name)
        },
    },
    Setting {
        name: "peer-protocol-max",
        old_names: &[],
        value_name: "VERSION",
        default: "8",
        help: "Speak no newer version of the protocol between nodes, so that an upgrade can be tried on some nodes first; 7 is the oldest",
        set: |draft, text| {
            let spoken = Protocols::SPOKEN;
            let newest = text.parse().ok().filter(|newest| spoken.contains(*newest));
            let protocols = newest.and_then(|newest| spoken.up_to(newest));
            set(&mut draft.config.protocols, protocols.ok_or_else(|| format!("this release speaks {spoken}")))
        },
    },
    Setting {
        name: "replication-factor",
        old_names: &[],
        value_name: "N|all",
        default: "3",
        help: "Replicas of a key when a request names none, at most the number of nodes",
        set: |draft, text| set(&mut draft.config.replication_factor, parse_factor(text)),
    },
    Setting {
        name: "durability",
        old_names: &[],
        value_name: "MODE",
        default: "always",
        help: "Sync a write to disk: before it is confirmed (always), at least every MS milliseconds (interval:MS), or when the operating system decides (os)",
        set: |draft, text| set(&mut draft.config.durability, parse_durability(text)),
    },
    Setting {
        name: "execution",
        old_names: &[],
        value_name: "inline|pool",
        default: "inline",
        help: "Run storage calls on the network threads (inline) or on the worker pool (pool)",
        set: |draft, text| {
            let execution = match text {
                "inline" => Ok(Execution::Inline),
                "pool" => Ok(Execution::Pool),
                _ => Err("allowed are inline and pool".to_owned()),
            };
            set(&mut draft.config.execution, execution)
        },
    },
    Setting {
        name: "threads",
        old_names: &[],
        value_name: "N",
        default: "0",
        help: "Network threads; 0 means one per core",
        set: |draft, text| set(&mut draft.config.threads, parse_number(text, 0, 1024)),
    },
    Setting {
        name: "pool-threads",
        old_names: &["workers"],
        value_name: "N",
        default: "0",
        help: "Threads of each worker pool (one for ranges and --execution pool, one for background work); 0 means two per network thread",
        set: |draft, text| set(&mut draft.config.pool_threads, parse_number(text, 0, 1024)),
    },
    Setting {
        name: "memory-budget",
        old_names: &[],
        value_name: "SIZE",
        default: "256MiB",
        help: "Memory for storage caches and write buffers together, at least 16MiB",
        set: |draft, text| set(&mut draft.config.memory_budget_bytes, parse_size(text, 16 << 20)),
    },
    Setting {
        name: "max-value-size",
        old_names: &[],
        value_name: "SIZE",
        default: "8MiB",
        help: "Refuse larger values; at most 256MiB, the same on all nodes",
        set: |draft, text| match parse_size(text, 1) {
            Ok(size) if size > 256 << 20 => Err("more than 256MiB".into()),
            size => set(&mut draft.config.limits.value_bytes_max, size),
        },
    },
    Setting {
        name: "max-body-memory",
        old_names: &[],
        value_name: "SIZE",
        default: "128MiB",
        help: "Memory for request and response bodies of all connections together; beyond it requests get 503. Frames between nodes have twice as much besides",
        set: |draft, text| set(&mut draft.config.limits.body_bytes_in_flight_max, parse_size(text, 1)),
    },
    Setting {
        name: "max-connections",
        old_names: &[],
        value_name: "N",
        default: "10000",
        help: "Client connections at once; further ones get 503 and are closed. The limit of file descriptors may lower it",
        set: |draft, text| set(&mut draft.config.limits.connections_max, parse_number(text, 1, 1_000_000)),
    },
    Setting {
        name: "request-timeout",
        old_names: &[],
        value_name: "DURATION",
        default: "1s",
        help: "Wait this long for replicas, then answer 504",
        set: |draft, text| set(&mut draft.config.request_timeout, parse_duration(text)),
    },
    Setting {
        name: "fanout",
        old_names: &[],
        value_name: "parallel|sequential",
        default: "parallel",
        help: "Send a write to all replicas at once (parallel), or to the next replica only when it is needed (sequential)",
        set: |draft, text| {
            let fanout = match text {
                "parallel" => Ok(Fanout::Parallel),
                "sequential" => Ok(Fanout::Sequential),
                _ => Err("allowed are parallel and sequential".to_owned()),
            };
            set(&mut draft.config.fanout, fanout)
        },
    },
    Setting {
        name: "hint-drain-timeout",
        old_names: &["hint-wait"],
        value_name: "DURATION",
        default: "2s",
        help: "Wait this long at start for the hints that peers hold for this node, then serve without the rest",
        set: |draft, text| set(&mut draft.config.hint_drain_timeout, parse_duration(text)),
    },
    Setting {
        name: "scrub-interval",
        old_names: &["scrub-every"],
        value_name: "DURATION",
        default: "24h",
        help: "Scan the whole store for corruption this often",
        set: |draft, text| set(&mut draft.config.upkeep.scrub_every, parse_duration(text)),
    },
    Setting {
        name: "scrub-rate",
        old_names: &[],
        value_name: "SIZE",
        default: "8MiB",
        help: "Read at most this many bytes a second while scanning for corruption",
        set: |draft, text| set(&mut draft.config.upkeep.scrub_rate, parse_size(text, 64 << 10)),
    },
    Setting {
        name: "repair-rate",
        old_names: &[],
        value_name: "SIZE",
        default: "64MiB",
        help: "Send and receive at most this many bytes a second for anti-entropy, refills and hints; less while client requests slow down",
        set: |draft, text| set(&mut draft.config.upkeep.repair_rate, parse_size(text, 64 << 10)),
    },
    Setting {
        name: "quarantine-max-size",
        old_names: &[],
        value_name: "SIZE",
        default: "16GiB",
        help: "Keep damaged stores up to this size: two at most, and the newest whatever its size",
        set: |draft, text| set(&mut draft.config.quarantine_bytes_max, parse_size(text, 0)),
    },
    Setting {
        name: "hint-max-size",
        old_names: &[],
        value_name: "SIZE",
        default: "1GiB",
        help: "Keep hints for one peer up to this size; anti-entropy repairs the rest",
        set: |draft, text| set(&mut draft.config.hints.bytes_max, parse_size(text, 0)),
    },
    Setting {
        name: "hint-max-age",
        old_names: &[],
        value_name: "DURATION",
        default: "3h",
        help: "Keep a hint this long; anti-entropy repairs older writes",
        set: |draft, text| {
            let millis = parse_duration(text).map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            set(&mut draft.config.hints.age_max_millis, millis)
        },
    },
    Setting {
        name: "tombstone-gc-interval",
        old_names: &["settle-interval"],
        value_name: "DURATION",
        default: "10s",
        help: "Look this often for tombstones and expired records that all replicas agree on, and purge them",
        set: |draft, text| set(&mut draft.config.tombstone_gc_interval, parse_duration(text)),
    },
    Setting {
        name: "max-clock-offset",
        old_names: &[],
        value_name: "DURATION",
        default: "500ms",
        help: "Report a peer whose clock differs from this node's by more than this",
        set: |draft, text| set(&mut draft.config.clock_offset_max, parse_duration(text)),
    },
    Setting {
        name: "clock-offset-limit",
        old_names: &[],
        value_name: "DURATION",
        default: "1m",
        help: "Refuse timestamps from peers or the disk that are further ahead of this node's clock; the same on all nodes",
        set: |draft, text| set(&mut draft.config.clock_offset_limit, parse_duration(text)),
    },
    Setting {
        name: "head-timeout",
        old_names: &[],
        value_name: "DURATION",
        default: "10s",
        help: "Wait this long for a complete request head, then close the connection",
        set: |draft, text| set(&mut draft.config.limits.waits.head, parse_duration(text)),
    },
    Setting {
        name: "body-timeout",
        old_names: &[],
        value_name: "DURATION",
        default: "10s",
        help: "Wait this long for more bytes of a request body, which must also arrive at 16 KiB/s on average",
        set: |draft, text| set(&mut draft.config.limits.waits.body, parse_duration(text)),
    },
    Setting {
        name: "idle-timeout",
        old_names: &[],
        value_name: "DURATION",
        default: "75s",
        help: "Close a connection that has had no request for this long",
        set: |draft, text| set(&mut draft.config.limits.waits.idle, parse_duration(text)),
    },
    Setting {
        name: "write-timeout",
        old_names: &[],
        value_name: "DURATION",
        default: "30s",
        help: "Wait this long for a client to read more of its answer, then close the connection",
        set: |draft, text| set(&mut draft.config.limits.waits.write, parse_duration(text)),
    },
    Setting {
        name: "range-timeout",
        old_names: &[],
        value_name: "DURATION",
        default: "5m",
        help: "End a range after this long; a range holds a snapshot of the store",
        set: |draft, text| set(&mut draft.config.limits.range_timeout, parse_duration(text)),
    },
    Setting {
        name: "drain-timeout",
        old_names: &[],
        value_name: "DURATION",
        default: "10s",
        help: "Wait this long at shutdown for requests under way",
        set: |draft, text| set(&mut draft.config.limits.drain_timeout, parse_duration(text)),
    },
    Setting {
        name: "slow-request",
        old_names: &[],
        value_name: "DURATION",
        default: "0",
        help: "Log requests for a key that take this long or longer, and which replica and which wait took how long; 0 logs none",
        set: |draft, text| {
            let bound = if text == "0" { Ok(None) } else { parse_duration(text).map(Some) };
            set(&mut draft.config.limits.slow_request, bound)
        },
    },
    Setting {
        name: "auth",
        old_names: &[],
        value_name: "off|warn|on",
        default: "off",
        help: "Let every client do everything (off), judge requests by their tokens and only count those that lack a right (warn), or refuse them (on). Other nodes are judged by --peer-auth",
        set: |draft, text| {
            let mode = AuthMode::of_name(text).ok_or_else(|| "allowed are off, warn and on".to_owned());
            set(&mut draft.config.auth, mode)
        },
    },
    Setting {
        name: "token-file",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "Read the clients' tokens from this file, which kvorum token writes; changes hold within 5 s, without a restart",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.config.token_file, Ok(file))
        },
    },
    Setting {
        name: "peer-secret-file",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "Prove to other nodes the secret in this file, 32 to 1024 bytes a line; all lines are accepted; changes hold within 5 s, without a restart",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.config.peer_secret_file, Ok(file))
        },
    },
    Setting {
        name: "peer-auth",
        old_names: &[],
        value_name: "off|prefer|require",
        default: "",
        help: "Let every node connect (off), prove and only count nodes that do not (prefer), or refuse them (require); without it: require with --peer-secret-file or --peer-ca, off without",
        set: |draft, text| {
            let mode = match text {
                "" => Ok(None),
                text => PeerAuthMode::of_name(text)
                    .map(Some)
                    .ok_or_else(|| "allowed are off, prefer and require".to_owned()),
            };
            set(&mut draft.peer_auth, mode)
        },
    },
    Setting {
        name: "tls-cert",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "Speak TLS and show the certificates in this PEM file, the node's own first; changes hold within 5 s, without a restart; needs --tls-key",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.tls_cert, Ok(file))
        },
    },
    Setting {
        name: "tls-key",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "The key of the node's certificate, a PEM file that only its user should read",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.tls_key, Ok(file))
        },
    },
    Setting {
        name: "tls-client-ca",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "Believe clients' certificates that these authorities (PEM) have signed: each is the token whose certificate names it",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.config.tls_client_ca, Ok(file))
        },
    },
    Setting {
        name: "peer-ca",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "Believe other nodes only with a certificate that these authorities (PEM) have signed and that names the host of the node's URL",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.config.peer_ca, Ok(file))
        },
    },
    Setting {
        name: "tls",
        old_names: &[],
        value_name: "allow|require",
        default: "",
        help: "Serve connections without TLS as well (allow), or refuse them (require); without it: require with --tls-cert",
        set: |draft, text| {
            let mode = match text {
                "" => Ok(None),
                text => {
                    TlsMode::of_name(text).map(Some).ok_or_else(|| "allowed are allow and require".to_owned())
                }
            };
            set(&mut draft.tls_mode, mode)
        },
    },
    Setting {
        name: "insecure",
        old_names: &[],
        value_name: "yes|no",
        default: "no",
        help: "Start although the node listens beyond this machine and everybody who reaches its port can read, change and delete everything",
        set: |draft, text| {
            let insecure = match text {
                "yes" => Ok(true),
                "no" => Ok(false),
                _ => Err("allowed are yes and no".to_owned()),
            };
            set(&mut draft.config.insecure, insecure)
        },
    },
    Setting {
        name: "audit-log",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "Append refused requests, requests to /admin and /debug, and changes of tokens to this file, a JSON object a line; keys as hashes, no secrets",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.config.audit_log, Ok(file))
        },
    },
    Setting {
        name: "admin-socket",
        old_names: &[],
        value_name: "FILE",
        default: "",
        help: "Also answer /admin, /debug, /metrics and /v0/status, without a token, on this Unix socket, which only the node's user can open",
        set: |draft, text| {
            let file = (!text.is_empty()).then(|| PathBuf::from(text));
            set(&mut draft.config.admin_socket, Ok(file))
        },
    },
    Setting {
        name: "trace-endpoint",
        old_names: &[],
        value_name: "URL",
        default: "",
        help: "Send traces of requests for keys to this collector (OTLP over HTTP, JSON), such as http://127.0.0.1:4318/v1/traces; without it there are none",
        set: |draft, text| {
            let endpoint = match text {
                "" => Ok(None),
                url => Endpoint::parse(url)
                    .map(Some)
                    .ok_or_else(|| "a URL such as http://127.0.0.1:4318/v1/traces is needed".to_owned()),
            };
            set(&mut draft.config.trace_endpoint, endpoint)
        },
    },
    Setting {
        name: "trace-sample",
        old_names: &[],
        value_name: "SHARE",
        default: "0.01",
        help: "Trace this share of requests, 0 to 1. A traceparent header decides for its request: always if it says sampled, else never",
        set: |draft, text| {
            let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
            set(
                &mut draft.config.trace_sample,
                share.ok_or_else(|| "allowed is a number from 0 to 1".to_owned()),
            )
        },
    },
    Setting {
        name: "log-format",
        old_names: &[],
        value_name: "text|json",
        default: "text",
        help: "Write log lines as text or as JSON",
        set: |draft, text| {
            let format = match text {
                "text" => Ok(LogFormat::Text),
                "json" => Ok(LogFormat::Json),
                _ => Err("allowed are text and json".to_owned()),
            };
            set(&mut draft.config.log_format, format)
        },
    },
];

/// A setting that no longer exists. It is refused, not ignored, because the operator relied on it.
pub struct Retired {
    /// Its name, as in the flag.
    pub name: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

/// All settings that no longer exist.
pub const RETIRED: &[Retired] = &[
    Retired {
        name: "new-cluster",
        instead: "as a setting it stays in files and disables the protection of lost disks for good; to vouch once that no \
                  store of this node was ever lost, run \"kvorum bootstrap DIR\" on its data directory before the start",
    },
    Retired {
        name: "trust-store",
        instead: "as a setting it stays in files and disables the protection of older copies for good; to vouch once that \
                  the data directory is the one that the node ran with last, run \"kvorum trust-store DIR\" before the start",
    },
];

/// The names that the command line accepts and its help does not show.
pub fn hidden_names() -> impl Iterator<Item = &'static str> {
    let old = SETTINGS.iter().flat_map(|setting| setting.old_names);
    RETIRED.iter().map(|retired| retired.name).chain(old.copied())
}

fn set<T>(slot: &mut T, value: Result<T, String>) -> Result<(), String> {
    *slot = value?;
    Ok(())
}
