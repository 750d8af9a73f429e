//! Configuration: flags over environment over file over defaults, from one table of settings.
//!
//! Every setting is a row of [`SETTINGS`]: its name is the flag (`--max-value-size`), the environment variable
//! (`KVORUM_MAX_VALUE_SIZE`) and the key in the TOML file (`max-value-size` or `max_value_size`). One function reads
//! the text from every source, so a value means the same in each. An error names the setting and the source of its
//! value.

mod values;

use crate::background::Transferring;
use crate::coordinator::{Fanout, Upkeep};
use crate::crash;
use crate::http::Limits;
use crate::http::connection::Waits;
use crate::replica::{DurabilityMode, Execution, HintBounds};
use kvorum_core::ReplicationFactor;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use values::{parse_durability, parse_duration, parse_factor, parse_number, parse_size, parse_urls};

/// The most nodes of a cluster.
pub const NODES_MAX: usize = 1024;
/// The prefix of every environment variable.
pub const ENV_PREFIX: &str = "KVORUM_";

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// A node's checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The directory of the node's data.
    pub data_dir: PathBuf,
    /// All nodes' URLs.
    pub cluster: Vec<String>,
    /// The URL of this node.
    pub advertise: String,
    /// The cluster's name.
    pub cluster_name: String,
    /// The order in which a write's replicas are asked.
    pub fanout: Fanout,
    /// How long a node that starts waits for hints.
    pub hint_wait: Duration,
    /// The bounds of hints for nodes that missed writes.
    pub hints: HintBounds,
    /// The interval between two tombstone GC rounds, which find the watermark and purge.
    pub settle_every: Duration,
    /// How far another node's clock may be off before it is reported.
    pub clock_offset_max: Duration,
    /// How far ahead of this node's clock a timestamp from a peer or the disk may be.
    pub clock_offset_limit: Duration,
    /// The default number of replicas of a key.
    pub replication_factor: ReplicationFactor,
    /// What must be on disk before a write is confirmed.
    pub durability: DurabilityMode,
    /// Where storage calls run.
    pub execution: Execution,
    /// Network threads.
    pub threads: usize,
    /// Threads of each worker pool.
    pub workers: usize,
    /// Bytes for storage caches and write buffers together.
    pub memory_budget_bytes: u64,
    /// The longest wait for replicas.
    pub request_timeout: Duration,
    /// Bounds of what clients may ask.
    pub limits: Limits,
    /// The rate limits of the node's background work.
    pub upkeep: Upkeep,
    /// The most bytes of damaged stores that are kept.
    pub quarantine_bytes_max: u64,
    /// The format of log lines.
    pub log_format: LogFormat,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The default: no source sets it.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// An error in the configuration.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A value that is not allowed.
    BadValue {
        /// The setting.
        name: &'static str,
        /// The source of the value.
        origin: Origin,
        /// The value.
        value: String,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// A setting that no longer exists.
    Retired {
        /// Its name.
        name: &'static str,
        /// The source that sets it.
        origin: Origin,
        /// What to do instead.
        instead: &'static str,
    },
    /// A key in the file that is not a setting.
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A file that cannot be read as TOML.
    BadFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadValue { name, origin, value, reason } => {
                write!(f, "{name} = {value:?} ({origin}): {reason}")
            }
            Self::Retired { name, origin, instead } => {
                write!(f, "{name} ({origin}) is no setting any more: {instead}")
            }
            Self::UnknownKey { path, key } => {
                let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
                write!(f, "{}: unknown key {key:?}; known are {}", path.display(), known.join(", "))
            }
            Self::BadFile { path, reason } => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for ConfigError {}

/// A setting.
pub struct Setting {
    /// Its name, as in the flag.
    pub name: &'static str,
    /// The placeholder for its value in the help.
    pub value_name: &'static str,
    /// Its default value as text; empty for none.
    pub default: &'static str,
    /// The description in the help.
    pub help: &'static str,
    set: fn(&mut Draft, &str) -> Result<(), String>,
}

/// The configuration while it is assembled.
struct Draft {
    config: Config,
    advertise: Option<String>,
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "listen",
        value_name: "ADDRESS",
        default: "127.0.0.1:8080",
        help: "Address and port to listen on",
        set: |draft, text| {
            set(
                &mut draft.config.listen,
                text.parse().map_err(|_| "not an IP address and port, such as 127.0.0.1:8080".into()),
            )
        },
    },
    Setting {
        name: "data-dir",
        value_name: "DIR",
        default: "./data",
        help: "Directory of this node's data; made if it is not there",
        set: |draft, text| match text {
            "" => Err("a directory is needed".into()),
            dir => set(&mut draft.config.data_dir, Ok(PathBuf::from(dir))),
        },
    },
    Setting {
        name: "cluster",
        value_name: "URL,URL,…",
        default: "",
        help: "URLs of all nodes, this one among them; a cluster of one where absent",
        set: |draft, text| set(&mut draft.config.cluster, parse_urls(text)),
    },
    Setting {
        name: "advertise",
        value_name: "URL",
        default: "",
        help: "Which of the cluster's URLs this node is, where --listen does not tell",
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
        name: "cluster-name",
        value_name: "NAME",
        default: "kvorum",
        help: "The cluster's name: nodes of another name are refused",
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
        name: "replication-factor",
        value_name: "N|all",
        default: "3",
        help: "Replicas of a key where a request does not say, capped by the cluster's size",
        set: |draft, text| set(&mut draft.config.replication_factor, parse_factor(text)),
    },
    Setting {
        name: "durability",
        value_name: "MODE",
        default: "always",
        help: "When a write is on disk: always (before it is confirmed), interval:MS (at least that often), os (when the system likes)",
        set: |draft, text| set(&mut draft.config.durability, parse_durability(text)),
    },
    Setting {
        name: "execution",
        value_name: "inline|pool",
        default: "inline",
        help: "Where storage calls run: on the network threads, or on the worker pool",
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
        value_name: "N",
        default: "0",
        help: "Network threads; 0 for one per core",
        set: |draft, text| set(&mut draft.config.threads, parse_number(text, 0, 1024)),
    },
    Setting {
        name: "workers",
        value_name: "N",
        default: "0",
        help: "Threads of each worker pool: for ranges and --execution pool, and for repair; 0 for two per core",
        set: |draft, text| set(&mut draft.config.workers, parse_number(text, 0, 1024)),
    },
    Setting {
        name: "memory-budget",
        value_name: "SIZE",
        default: "256MiB",
        help: "Memory for storage caches and write buffers together, at least 16MiB",
        set: |draft, text| set(&mut draft.config.memory_budget_bytes, parse_size(text, 16 << 20)),
    },
    Setting {
        name: "max-value-size",
        value_name: "SIZE",
        default: "8MiB",
        help: "Largest value, at most 256MiB",
        set: |draft, text| match parse_size(text, 1) {
            Ok(size) if size > 256 << 20 => Err("more than 256MiB".into()),
            size => set(&mut draft.config.limits.value_bytes_max, size),
        },
    },
    Setting {
        name: "max-body-memory",
        value_name: "SIZE",
        default: "128MiB",
        help: "Bodies in memory at once over all connections: values received, and large ones being sent; beyond it requests get 503. Frames between nodes have twice as much of their own",
        set: |draft, text| set(&mut draft.config.limits.body_bytes_in_flight_max, parse_size(text, 1)),
    },
    Setting {
        name: "max-connections",
        value_name: "N",
        default: "10000",
        help: "Client connections at once, fewer where the descriptor limit leaves no room beside the store and the peers; more are told 503 and closed",
        set: |draft, text| set(&mut draft.config.limits.connections_max, parse_number(text, 1, 1_000_000)),
    },
    Setting {
        name: "request-timeout",
        value_name: "DURATION",
        default: "1s",
        help: "How long a request waits for replicas before it is answered 504",
        set: |draft, text| set(&mut draft.config.request_timeout, parse_duration(text)),
    },
    Setting {
        name: "fanout",
        value_name: "parallel|sequential",
        default: "parallel",
        help: "Whether a write asks all replicas at once, or the next only when it is needed",
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
        name: "hint-wait",
        value_name: "DURATION",
        default: "2s",
        help: "How long a node that starts waits for the hints that its peers hold for it",
        set: |draft, text| set(&mut draft.config.hint_wait, parse_duration(text)),
    },
    Setting {
        name: "scrub-every",
        value_name: "DURATION",
        default: "24h",
        help: "Between two walks over everything stored, which find damaged rows before somebody asks for them",
        set: |draft, text| set(&mut draft.config.upkeep.scrub_every, parse_duration(text)),
    },
    Setting {
        name: "scrub-rate",
        value_name: "SIZE",
        default: "8MiB",
        help: "Bytes a second that such a walk reads",
        set: |draft, text| set(&mut draft.config.upkeep.scrub_rate, parse_size(text, 64 << 10)),
    },
    Setting {
        name: "repair-rate",
        value_name: "SIZE",
        default: "64MiB",
        help: "Bytes a second that repair, refill of lost stores and hints send and take at most; less while clients feel it",
        set: |draft, text| set(&mut draft.config.upkeep.repair_rate, parse_size(text, 64 << 10)),
    },
    Setting {
        name: "quarantine-max-size",
        value_name: "SIZE",
        default: "16GiB",
        help: "Bytes of damaged stores that are kept; the newest is kept whatever it takes, and two at most",
        set: |draft, text| set(&mut draft.config.quarantine_bytes_max, parse_size(text, 0)),
    },
    Setting {
        name: "hint-max-size",
        value_name: "SIZE",
        default: "1GiB",
        help: "Hints kept for one node; what is over it is left to repair",
        set: |draft, text| set(&mut draft.config.hints.bytes_max, parse_size(text, 0)),
    },
    Setting {
        name: "hint-max-age",
        value_name: "DURATION",
        default: "3h",
        help: "How long a hint is kept; what is older is left to repair",
        set: |draft, text| {
            let millis = parse_duration(text).map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            set(&mut draft.config.hints.age_max_millis, millis)
        },
    },
    Setting {
        name: "settle-interval",
        value_name: "DURATION",
        default: "10s",
        help: "Between two rounds that find out up to where all nodes agree, and purge tombstones and expired records",
        set: |draft, text| set(&mut draft.config.settle_every, parse_duration(text)),
    },
    Setting {
        name: "max-clock-offset",
        value_name: "DURATION",
        default: "500ms",
        help: "How far another node's clock may be off before it is reported",
        set: |draft, text| set(&mut draft.config.clock_offset_max, parse_duration(text)),
    },
    Setting {
        name: "clock-offset-limit",
        value_name: "DURATION",
        default: "1m",
        help: "How far ahead of this node's clock a timestamp from another node or the disk may be before it is refused; the same on all nodes",
        set: |draft, text| set(&mut draft.config.clock_offset_limit, parse_duration(text)),
    },
    Setting {
        name: "head-timeout",
        value_name: "DURATION",
        default: "10s",
        help: "From the first to the last byte of a request's head",
        set: |draft, text| set(&mut draft.config.limits.waits.head, parse_duration(text)),
    },
    Setting {
        name: "body-timeout",
        value_name: "DURATION",
        default: "10s",
        help: "Between two arrivals of a body's bytes, which must keep 16 KiB/s on average besides",
        set: |draft, text| set(&mut draft.config.limits.waits.body, parse_duration(text)),
    },
    Setting {
        name: "idle-timeout",
        value_name: "DURATION",
        default: "75s",
        help: "Between two requests on a connection",
        set: |draft, text| set(&mut draft.config.limits.waits.idle, parse_duration(text)),
    },
    Setting {
        name: "write-timeout",
        value_name: "DURATION",
        default: "30s",
        help: "For a client to take more of its answer",
        set: |draft, text| set(&mut draft.config.limits.waits.write, parse_duration(text)),
    },
    Setting {
        name: "range-timeout",
        value_name: "DURATION",
        default: "5m",
        help: "For a whole range; it holds a snapshot of the store meanwhile",
        set: |draft, text| set(&mut draft.config.limits.range_timeout, parse_duration(text)),
    },
    Setting {
        name: "drain-timeout",
        value_name: "DURATION",
        default: "10s",
        help: "How long a node that was told to stop waits for requests under way",
        set: |draft, text| set(&mut draft.config.limits.drain_timeout, parse_duration(text)),
    },
    Setting {
        name: "log-format",
        value_name: "text|json",
        default: "text",
        help: "How log lines are written",
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

/// A setting's value and its source.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The setting.
    pub name: &'static str,
    /// Its value, as the source wrote it.
    pub value: String,
    /// The source.
    pub origin: Origin,
}

/// Assembles the configuration.
///
/// `flags` maps setting names to values, `environment` maps variable names to values. `file` is a file's path and text.
pub fn resolve(
    flags: &BTreeMap<&'static str, String>,
    environment: &BTreeMap<String, String>,
    file: Option<(&Path, &str)>,
) -> Result<(Config, Vec<Resolved>), ConfigError> {
    for Retired { name, instead } in RETIRED {
        let variable = variable_of(name);
        let origin = match (flags.contains_key(name), environment.contains_key(&variable)) {
            (true, _) => Origin::Flag(name),
            (false, true) => Origin::Environment(variable),
            (false, false) => continue,
        };
        return Err(ConfigError::Retired { name, origin, instead });
    }
    let in_file = file.map(|(path, text)| read_file(path, text)).transpose()?.unwrap_or_default();
    let mut draft = Draft::blank();
    let mut resolved = Vec::with_capacity(SETTINGS.len());
    for setting in SETTINGS {
        let variable = variable_of(setting.name);
        let (value, origin) = if let Some(value) = flags.get(setting.name) {
            (value.clone(), Origin::Flag(setting.name))
        } else if let Some(value) = environment.get(&variable) {
            (value.clone(), Origin::Environment(variable))
        } else if let (Some(value), Some((path, _))) = (in_file.get(setting.name), file) {
            (value.clone(), Origin::File(path.to_path_buf()))
        } else {
            (setting.default.to_owned(), Origin::Default)
        };
        (setting.set)(&mut draft, value.trim()).map_err(|reason| ConfigError::BadValue {
            name: setting.name,
            origin: origin.clone(),
            value: value.clone(),
            reason,
        })?;
        resolved.push(Resolved { name: setting.name, value, origin });
    }
    let config = draft.finish(&resolved)?;
    Ok((config, resolved))
}

/// The environment variable of a setting.
pub fn variable_of(name: &str) -> String {
    format!("{ENV_PREFIX}{}", name.replace('-', "_").to_ascii_uppercase())
}

/// Variables with our prefix that are not settings. They cause a warning, not an error: container platforms set
/// variables named after services, and a service may be called kvorum.
pub fn unknown_variables(environment: &BTreeMap<String, String>) -> Vec<&str> {
    let ours = ["KVORUM_CONFIG", "KVORUM_LOG", "KVORUM_URL"];
    let known = |name: &str| {
        let is_setting = SETTINGS.iter().any(|setting| variable_of(setting.name) == name);
        is_setting || ours.contains(&name) || (cfg!(feature = "crash-points") && name == crash::VARIABLE)
    };
    environment
        .keys()
        .filter(|name| name.starts_with(ENV_PREFIX) && !known(name))
        .map(String::as_str)
        .collect()
}

/// The configuration as a TOML file, each value with its origin.
pub fn print(resolved: &[Resolved]) -> String {
    let rows: Vec<(String, &Origin)> =
        resolved.iter().map(|row| (format!("{} = {:?}", row.name, row.value), &row.origin)).collect();
    let width = rows.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0);
    rows.iter().fold(String::new(), |page, (text, origin)| page + &format!("{text:width$}  # {origin}\n"))
}

impl Draft {
    /// Placeholder values, which the settings overwrite.
    fn blank() -> Self {
        let none = Duration::ZERO;
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: PathBuf::new(),
            cluster: Vec::new(),
            advertise: String::new(),
            cluster_name: String::new(),
            fanout: Fanout::Parallel,
            hint_wait: none,
            hints: HintBounds { bytes_max: 0, age_max_millis: 0 },
            settle_every: none,
            clock_offset_max: none,
            clock_offset_limit: none,
            replication_factor: ReplicationFactor::All,
            durability: DurabilityMode::Always,
            execution: Execution::Inline,
            threads: 0,
            workers: 0,
            memory_budget_bytes: 0,
            request_timeout: none,
            limits: Limits {
                value_bytes_max: 0,
                body_bytes_in_flight_max: 0,
                connections_max: 0,
                range_timeout: none,
                drain_timeout: none,
                waits: Waits { head: none, body: none, idle: none, write: none },
            },
            upkeep: Upkeep {
                scrub_every: none,
                scrub_rate: 0,
                repair_rate: 0,
                transferring: Transferring::default(),
            },
            quarantine_bytes_max: 0,
            log_format: LogFormat::Text,
        };
        Self { config, advertise: None }
    }

    /// Checks the settings that depend on each other.
    fn finish(self, resolved: &[Resolved]) -> Result<Config, ConfigError> {
        let Self { mut config, advertise } = self;
        let bad = |name: &'static str, reason: String| {
            let row = resolved.iter().find(|row| row.name == name);
            let (value, origin) =
                row.map_or((String::new(), Origin::Default), |row| (row.value.clone(), row.origin.clone()));
            ConfigError::BadValue { name, origin, value, reason }
        };
        if config.threads == 0 {
            config.threads = std::thread::available_parallelism().map_or(1, usize::from);
        }
        if config.workers == 0 {
            config.workers = 2 * config.threads;
        }
        if config.limits.body_bytes_in_flight_max < config.limits.value_bytes_max {
            return Err(bad(
                "max-body-memory",
                "less than max-value-size: such a value could never be received".into(),
            ));
        }
        if config.clock_offset_limit < config.clock_offset_max {
            return Err(bad(
                "clock-offset-limit",
                "less than max-clock-offset: what is refused must have been reported before".into(),
            ));
        }
        let own = format!("http://{}", config.listen);
        if config.cluster.is_empty() {
            config.advertise = advertise.unwrap_or(own);
            config.cluster = vec![config.advertise.clone()];
            return Ok(config);
        }
        let mut sorted: Vec<&String> = config.cluster.iter().collect();
        sorted.sort();
        if let Some([twice, _]) = sorted.array_windows().find(|[url, next]| url == next) {
            return Err(bad("cluster", format!("{twice} is listed twice")));
        }
        if config.cluster.len() > NODES_MAX {
            return Err(bad("cluster", format!("more than {NODES_MAX} nodes")));
        }
        config.advertise = match advertise {
            Some(url) if config.cluster.contains(&url) => url,
            Some(url) => return Err(bad("advertise", format!("{url} is not among the cluster's URLs"))),
            None if config.cluster.contains(&own) => own,
            None => {
                return Err(bad(
                    "cluster",
                    format!("{own} (from --listen) is not among them; name this node's URL with --advertise"),
                ));
            }
        };
        Ok(config)
    }
}

fn set<T>(slot: &mut T, value: Result<T, String>) -> Result<(), String> {
    *slot = value?;
    Ok(())
}

/// The settings in a TOML file, as text.
fn read_file(path: &Path, text: &str) -> Result<BTreeMap<&'static str, String>, ConfigError> {
    let bad = |reason: String| ConfigError::BadFile { path: path.to_path_buf(), reason };
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| bad(error.to_string()))?;
    let mut values = BTreeMap::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        if let Some(Retired { name, instead }) = RETIRED.iter().find(|retired| retired.name == name) {
            return Err(ConfigError::Retired { name, origin: Origin::File(path.to_path_buf()), instead });
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
            return Err(ConfigError::UnknownKey { path: path.to_path_buf(), key });
        };
        let text = value_text(&value)
            .ok_or_else(|| bad(format!("{key}: a text, a number or a list of texts is needed")))?;
        if values.insert(setting.name, text).is_some() {
            return Err(bad(format!("{key} is set twice")));
        }
    }
    Ok(values)
}

fn value_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            items.map(|items| items.join(","))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(
        flags: &[(&'static str, &str)],
        environment: &[(&str, &str)],
        file: Option<&str>,
    ) -> Result<(Config, Vec<Resolved>), ConfigError> {
        let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        resolve(&flags, &environment, file.map(|text| (Path::new("k.toml"), text)))
    }

    /// Each source overrides those after it, and the origin names the one that was used.
    #[test]
    fn flags_win_over_environment_over_file() {
        let file = "request_timeout = \"7s\"\nmax-value-size = \"2MiB\"\nthreads = 3\n";
        let environment = [("KVORUM_REQUEST_TIMEOUT", "8s"), ("KVORUM_THREADS", "4")];
        let (config, resolved) = with(&[("threads", "5")], &environment, Some(file)).unwrap();
        assert_eq!(config.threads, 5);
        assert_eq!(config.request_timeout, Duration::from_secs(8));
        assert_eq!(config.limits.value_bytes_max, 2 << 20);
        let origin = |name| resolved.iter().find(|row| row.name == name).unwrap().origin.to_string();
        assert_eq!(origin("threads"), "flag --threads");
        assert_eq!(origin("request-timeout"), "environment KVORUM_REQUEST_TIMEOUT");
        assert_eq!(origin("max-value-size"), "file k.toml");
        assert_eq!(origin("workers"), "default");
    }

    /// The printed configuration is a file that resolves to the same values.
    #[test]
    fn printed_configuration_is_a_configuration() {
        let (_, resolved) = with(&[("durability", "interval:50")], &[], None).unwrap();
        let page = print(&resolved);
        let (_, again) = with(&[], &[], Some(&page)).unwrap();
        assert!(resolved.iter().zip(&again).all(|(a, b)| a.value == b.value), "{page}");
    }

    /// Every default is valid, and every setting refuses an invalid value with an error that names it.
    #[test]
    fn nonsense_is_refused_by_name() {
        with(&[], &[], None).unwrap();
        for setting in SETTINGS.iter().filter(|setting| setting.name != "data-dir") {
            let error = with(&[(setting.name, "no such thing")], &[], None).unwrap_err().to_string();
            assert!(error.contains(setting.name) && error.contains("flag"), "{error}");
        }
        for (name, value) in [
            ("durability", "interval:0"),
            ("durability", "interval:"),
            ("request-timeout", "0s"),
            ("request-timeout", "5"),
            ("max-value-size", "257MiB"),
            ("memory-budget", "15MiB"),
            ("max-body-memory", "1MiB"),
            ("clock-offset-limit", "499ms"),
            ("replication-factor", "0"),
            ("cluster", "http://a:1,http://b:2"),
            ("cluster-name", "a b"),
            ("fanout", "both"),
            ("hint-max-age", "0s"),
            ("cluster", "http://a:1,http://a:1"),
            ("cluster", "http://127.0.0.1:8080,http://127.0.0.1:08080/"),
            ("cluster", "http://127.0.0.1:8080,http://a:80,http://A."),
            ("cluster", "https://a:1"),
            ("cluster", "http://a"),
            ("cluster", "http://a:1/x"),
            ("cluster", "http://a:1"),
        ] {
            assert!(with(&[(name, value)], &[], None).is_err(), "{name}={value}");
        }
    }

    /// A former setting that is now a command is refused from every source, whatever its value; the error names the
    /// command.
    #[test]
    fn retired_settings_name_the_command() {
        for (name, command) in
            [("new-cluster", "kvorum bootstrap DIR"), ("trust-store", "kvorum trust-store DIR")]
        {
            let spelled = name.replace('-', "_");
            let variable = variable_of(name);
            for value in ["yes", "no", ""] {
                let file = format!("{spelled} = {value:?}\n");
                for outcome in [
                    with(&[(name, value)], &[], None),
                    with(&[], &[(&variable, value)], None),
                    with(&[], &[], Some(&file)),
                ] {
                    let error = outcome.unwrap_err().to_string();
                    assert!(error.starts_with(name) && error.contains(command), "{error}");
                }
            }
            assert!(SETTINGS.iter().all(|setting| setting.name != name));
        }
    }

    /// Unknown keys, duplicate spellings and wrong types in the file are reported by name.
    #[test]
    fn bad_files_are_refused() {
        let error = |file| with(&[], &[], Some(file)).unwrap_err().to_string();
        assert!(error("lisen = \"x\"").contains("unknown key \"lisen\""));
        assert!(error("data-dir = \"a\"\ndata_dir = \"b\"").contains("set twice"));
        assert!(error("threads = true").contains("threads"));
        assert!(error("threads = ").contains("k.toml"));
    }

    /// A node finds its URL in the list, and equal lists compare as equal, whatever the spelling of the URLs.
    #[test]
    fn urls_are_compared_as_urls() {
        let cluster = |listen: &str, urls: &str| {
            let (config, _) = with(&[("listen", listen), ("cluster", urls)], &[], None).unwrap();
            (config.advertise, config.cluster)
        };
        let expect = ["http://[::1]:8080".to_owned(), "http://node-b:80".to_owned()];
        for urls in [
            "http://[::1]:8080,http://node-b:80",
            "HTTP://[0:0::1]:08080/,http://Node%2DB.",
            "http://[::1]:8080,http://NODE-B:/",
        ] {
            assert_eq!(cluster("[::1]:8080", urls), (expect[0].clone(), expect.to_vec()), "{urls}");
        }
        let flags = [("cluster", "http://a:1,http://b:1"), ("advertise", "http://B:1/")];
        assert_eq!(with(&flags, &[], None).unwrap().0.advertise, "http://b:1");
    }

    /// A cluster of one by its own URL, or by an advertised one.
    #[test]
    fn cluster_of_one() {
        let advertised =
            |flags: &[(&'static str, &str)]| with(flags, &[], None).map(|(config, _)| config.advertise);
        assert_eq!(advertised(&[]), Ok("http://127.0.0.1:8080".into()));
        assert_eq!(advertised(&[("cluster", "http://127.0.0.1:8080/")]), Ok("http://127.0.0.1:8080".into()));
        assert_eq!(
            advertised(&[("cluster", "http://n:1"), ("advertise", "http://n:1")]),
            Ok("http://n:1".into())
        );
        assert!(advertised(&[("cluster", "http://n:1"), ("advertise", "http://m:1")]).is_err());
    }

    /// Variables with our prefix that are not settings are found.
    #[test]
    fn unknown_variables_are_found() {
        let environment = ["KVORUM_LISTEN", "KVORUM_SERVICE_HOST", "KVORUM_CONFIG", "PATH"]
            .map(|name| (name.to_owned(), String::new()))
            .into();
        assert_eq!(unknown_variables(&environment), ["KVORUM_SERVICE_HOST"]);
    }
}
