//! Configuration: flags over environment over file over defaults, from one table of settings.
//!
//! Every setting is a row of [`SETTINGS`]: its name is the flag (`--max-value-size`), the environment variable
//! (`KVORUM_MAX_VALUE_SIZE`) and the key in the TOML file (`max-value-size` or `max_value_size`). One function reads
//! the text from every source, so a value means the same in each. An error names the setting and the source of its
//! value. Former names of a setting are rows' `old_names`: accepted everywhere, with a warning.

mod table;
mod values;

use crate::background::Transferring;
use crate::coordinator::{Fanout, Upkeep};
use crate::crash;
use crate::http::Limits;
use crate::http::connection::Waits;
use crate::log::LogFormat;
use crate::peer::{PeerAuthMode, PlaceSettings, Protocols};
use crate::replica::{DurabilityMode, Execution, HintBounds};
use crate::security::AuthMode;
use crate::spans::Endpoint;
use crate::tls::TlsMode;
use kvorum_core::ReplicationFactor;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use table::{RETIRED, Retired, SETTINGS, Setting, hidden_names};

/// The time after which a change of members goes on without a member that says nothing.
const AWAY_AFTER: Duration = Duration::from_secs(30);

/// The most nodes of a cluster.
pub const NODES_MAX: usize = 1024;
/// The prefix of every environment variable.
pub const ENV_PREFIX: &str = "KVORUM_";

/// A node's checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The directory of the node's data.
    pub data_dir: PathBuf,
    /// All nodes' URLs.
    pub cluster: Vec<String>,
    /// URLs of members of the cluster that this node waits to join; empty for none.
    pub join: Vec<String>,
    /// The URL of this node.
    pub advertise: String,
    /// The zone and weight that this node joins with, as far as the settings name them.
    pub place: PlaceSettings,
    /// The cluster's name.
    pub cluster_name: String,
    /// The versions of the protocol between nodes that this node speaks.
    pub protocols: Protocols,
    /// The order in which a write's replicas are asked.
    pub fanout: Fanout,
    /// How long a node that starts waits for hints.
    pub hint_drain_timeout: Duration,
    /// The bounds of hints for nodes that missed writes.
    pub hints: HintBounds,
    /// The interval between two tombstone GC rounds, which find the watermark and purge.
    pub tombstone_gc_interval: Duration,
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
    pub pool_threads: usize,
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
    /// Whether clients need tokens.
    pub auth: AuthMode,
    /// The file of tokens.
    pub token_file: Option<PathBuf>,
    /// Whether peers must prove that they know the secret.
    pub peer_auth: PeerAuthMode,
    /// The file of the peer secrets.
    pub peer_secret_file: Option<PathBuf>,
    /// The node's certificate and key.
    pub tls: Option<TlsConfig>,
    /// The authorities of clients' certificates.
    pub tls_client_ca: Option<PathBuf>,
    /// The authorities of other nodes' certificates.
    pub peer_ca: Option<PathBuf>,
    /// Whether the node may be reached from other machines although strangers can use it there.
    pub insecure: bool,
    /// The audit log.
    pub audit_log: Option<PathBuf>,
    /// The socket for administration on this machine.
    pub admin_socket: Option<PathBuf>,
    /// Where traces of requests go.
    pub trace_endpoint: Option<Endpoint>,
    /// The share of requests that are traced, 0 to 1.
    pub trace_sample: f64,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// All settings as they were given, each with its source.
    pub settings: Vec<Resolved>,
}

/// What a node shows on its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Its chain of certificates.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// How connections without TLS are treated.
    pub mode: TlsMode,
}

impl Config {
    /// Whether the settings name the URL of this node, beside its address.
    pub fn is_advertised(&self) -> bool {
        self.settings.iter().any(|row| row.name == "advertise" && !row.value.trim().is_empty())
    }

    /// Whether the node listens beyond its machine and lets strangers do everything.
    pub fn is_insecure(&self) -> bool {
        !self.listen.ip().to_canonical().is_loopback() && !open_to(self).is_empty()
    }
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
    /// A setting given under its name and a former name, or under two former names.
    TwoNames {
        /// The setting.
        name: &'static str,
        /// The first name, and the source that uses it.
        first: (&'static str, Origin),
        /// The second name, and the source that uses it.
        second: (&'static str, Origin),
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
                write!(f, "{name} ({origin}) is not a setting any more: {instead}")
            }
            Self::TwoNames { name, first, second } => {
                write!(f, "{} ({}) and {} ({}) are ", first.0, first.1, second.0, second.1)?;
                write!(f, "the old and the new name of one setting: give {name} only")
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

/// The configuration while it is assembled.
struct Draft {
    config: Config,
    advertise: Option<String>,
    peer_auth: Option<PeerAuthMode>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_mode: Option<TlsMode>,
}

/// A setting's value and its source.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The setting.
    pub name: &'static str,
    /// Its value, as the source wrote it.
    pub value: String,
    /// The source.
    pub origin: Origin,
    /// The former name that the source used instead of `name`, if it did.
    pub old_name: Option<&'static str>,
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
    let given = |name: &'static str| -> Option<(String, Origin)> {
        let variable = variable_of(name);
        if let Some(value) = flags.get(name) {
            Some((value.clone(), Origin::Flag(name)))
        } else if let Some(value) = environment.get(&variable) {
            Some((value.clone(), Origin::Environment(variable)))
        } else {
            let (value, (path, _)) = in_file.get(name).zip(file)?;
            Some((value.clone(), Origin::File(path.to_path_buf())))
        }
    };
    let mut draft = Draft::blank();
    let mut resolved = Vec::with_capacity(SETTINGS.len());
    for setting in SETTINGS {
        let names = setting.old_names.iter().copied().chain([setting.name]);
        let mut used = names.filter_map(|name| Some((name, given(name)?)));
        let (value, origin, old_name) = match (used.next(), used.next()) {
            (Some((first, (_, origin))), Some((second, (_, other)))) => {
                let (first, second) = ((first, origin), (second, other));
                return Err(ConfigError::TwoNames { name: setting.name, first, second });
            }
            (Some((name, (value, origin))), _) => (value, origin, (name != setting.name).then_some(name)),
            (None, _) => (setting.default.to_owned(), Origin::Default, None),
        };
        (setting.set)(&mut draft, value.trim()).map_err(|reason| ConfigError::BadValue {
            name: setting.name,
            origin: origin.clone(),
            value: value.clone(),
            reason,
        })?;
        resolved.push(Resolved { name: setting.name, value, origin, old_name });
    }
    let mut config = draft.finish(&resolved)?;
    config.settings.clone_from(&resolved);
    Ok((config, resolved))
}

/// The environment variable of a setting.
pub fn variable_of(name: &str) -> String {
    format!("{ENV_PREFIX}{}", name.replace('-', "_").to_ascii_uppercase())
}

/// Variables with our prefix that are not settings. They cause a warning, not an error: container platforms set
/// variables named after services, and a service may be called kvorum.
pub fn unknown_variables(environment: &BTreeMap<String, String>) -> Vec<&str> {
    let ours = ["KVORUM_CONFIG", "KVORUM_LOG", "KVORUM_TOKEN", "KVORUM_URL"];
    let known = |name: &str| {
        let names = SETTINGS.iter().flat_map(|setting| setting.old_names.iter().chain([&setting.name]));
        let is_setting = names.into_iter().any(|setting| variable_of(setting) == name);
        is_setting || ours.contains(&name) || (cfg!(feature = "crash-points") && name == crash::VARIABLE)
    };
    environment
        .keys()
        .filter(|name| name.starts_with(ENV_PREFIX) && !known(name))
        .map(String::as_str)
        .collect()
}

/// One warning for each setting that was given under a former name.
pub fn warn_of_old_names(resolved: &[Resolved]) {
    for Resolved { name, origin, old_name, .. } in resolved {
        if let Some(old_name) = old_name {
            tracing::warn!(%origin, "the setting {old_name} is now called {name}: use the new name, the old one will be removed");
        }
    }
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
            join: Vec::new(),
            advertise: String::new(),
            place: PlaceSettings::default(),
            cluster_name: String::new(),
            protocols: Protocols::SPOKEN,
            fanout: Fanout::Parallel,
            hint_drain_timeout: none,
            hints: HintBounds { bytes_max: 0, age_max_millis: 0 },
            tombstone_gc_interval: none,
            clock_offset_max: none,
            clock_offset_limit: none,
            replication_factor: ReplicationFactor::All,
            durability: DurabilityMode::Always,
            execution: Execution::Inline,
            threads: 0,
            pool_threads: 0,
            memory_budget_bytes: 0,
            request_timeout: none,
            limits: Limits {
                slow_request: None,
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
                away_after: AWAY_AFTER,
            },
            quarantine_bytes_max: 0,
            auth: AuthMode::Off,
            token_file: None,
            peer_auth: PeerAuthMode::Off,
            peer_secret_file: None,
            tls: None,
            tls_client_ca: None,
            peer_ca: None,
            insecure: false,
            audit_log: None,
            admin_socket: None,
            trace_endpoint: None,
            trace_sample: 0.0,
            log_format: LogFormat::Text,
            settings: Vec::new(),
        };
        Self { config, advertise: None, peer_auth: None, tls_cert: None, tls_key: None, tls_mode: None }
    }

    /// Checks the settings that depend on each other.
    fn finish(self, resolved: &[Resolved]) -> Result<Config, ConfigError> {
        let Self { mut config, advertise, peer_auth, tls_cert, tls_key, tls_mode } = self;
        let bad = |name: &'static str, reason: String| {
            let row = resolved.iter().find(|row| row.name == name);
            let (value, origin) =
                row.map_or((String::new(), Origin::Default), |row| (row.value.clone(), row.origin.clone()));
            ConfigError::BadValue { name, origin, value, reason }
        };
        if config.threads == 0 {
            config.threads = std::thread::available_parallelism().map_or(1, usize::from);
        }
        if config.pool_threads == 0 {
            config.pool_threads = 2 * config.threads;
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
                "less than max-clock-offset: an offset must be reported before it is refused".into(),
            ));
        }
        if config.auth != AuthMode::Off && config.token_file.is_none() {
            return Err(bad("auth", "it needs --token-file: there are no tokens without it".into()));
        }
        config.tls = match (tls_cert, tls_key) {
            (Some(cert), Some(key)) => Some(TlsConfig { cert, key, mode: tls_mode.unwrap_or_default() }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(bad("tls-cert", "it needs --tls-key, the key of the certificate".into()));
            }
            (None, Some(_)) => {
                return Err(bad("tls-key", "it needs --tls-cert, the certificate of the key".into()));
            }
        };
        for (name, is_given) in [
            ("tls", tls_mode.is_some()),
            ("tls-client-ca", config.tls_client_ca.is_some()),
            ("peer-ca", config.peer_ca.is_some()),
        ] {
            if is_given && config.tls.is_none() {
                return Err(bad(
                    name,
                    "it needs --tls-cert and --tls-key: there is no TLS without them".into(),
                ));
            }
        }
        let has_means = config.peer_secret_file.is_some() || config.peer_ca.is_some();
        let by_file = if has_means { PeerAuthMode::Require } else { PeerAuthMode::Off };
        config.peer_auth = peer_auth.unwrap_or(by_file);
        if config.peer_auth == PeerAuthMode::Require && !has_means {
            return Err(bad(
                "peer-auth",
                "it needs --peer-ca or --peer-secret-file: there is nothing to prove without them".into(),
            ));
        }
        if config.is_insecure() && !config.insecure {
            return Err(bad("insecure", insecure_reason(&config)));
        }
        // A port that still takes plain connections is called by its `http` URL, until that is changed.
        let is_secure = config.tls.as_ref().is_some_and(|tls| tls.mode == TlsMode::Require);
        let own = format!("{}://{}", if is_secure { "https" } else { "http" }, config.listen);
        if !config.join.is_empty() && !config.cluster.is_empty() {
            return Err(bad(
                "join",
                "it is for a node that is to join a cluster, and --cluster for one that begins it".into(),
            ));
        }
        if config.cluster.is_empty() {
            config.advertise = advertise.unwrap_or(own);
            config.cluster = vec![config.advertise.clone()];
            return checked_schemes(config, bad);
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
            None => {
                let named = ["http", "https"].map(|scheme| format!("{scheme}://{}", config.listen));
                if let Some(url) = named.into_iter().find(|url| config.cluster.contains(url)) {
                    config.advertise = url;
                    return checked_schemes(config, bad);
                }
                return Err(bad(
                    "cluster",
                    format!("{own} (from --listen) is not among them; name this node's URL with --advertise"),
                ));
            }
        };
        checked_schemes(config, bad)
    }
}

/// Checks that the schemes of the URLs fit the node's TLS.
fn checked_schemes(
    config: Config,
    bad: impl Fn(&'static str, String) -> ConfigError,
) -> Result<Config, ConfigError> {
    let secure = |url: &String| url.starts_with("https://");
    let own_name = if config.cluster.len() > 1 { "cluster" } else { "advertise" };
    if secure(&config.advertise) && config.tls.is_none() {
        let reason = format!("{} is this node, which has no --tls-cert", config.advertise);
        return Err(bad(own_name, reason));
    }
    let refuses_plain = config.tls.as_ref().is_some_and(|tls| tls.mode == TlsMode::Require);
    if refuses_plain && !secure(&config.advertise) {
        let reason = format!(
            "{} is this node, which refuses connections without TLS: name it by https, or give --tls allow",
            config.advertise
        );
        return Err(bad(own_name, reason));
    }
    let mut others = config.cluster.iter().chain(&config.join).filter(|url| **url != config.advertise);
    if config.peer_ca.is_none() && others.clone().any(secure) {
        return Err(bad(
            "cluster",
            "https URLs of other nodes need --peer-ca, the authorities of their certificates".into(),
        ));
    }
    let is_required = config.peer_auth == PeerAuthMode::Require && config.peer_ca.is_some();
    if is_required && let Some(url) = others.find(|url| !secure(url)) {
        let reason = format!(
            "{url} is called without TLS, so that it cannot show a certificate: name it by https, or give --peer-auth prefer"
        );
        return Err(bad("cluster", reason));
    }
    Ok(config)
}

/// Whom a node lets do everything that reaches its port; empty if nobody.
pub fn open_to(config: &Config) -> &'static str {
    // A lone node takes no connection of any other node.
    let has_peers = config.cluster.len() > 1 || !config.join.is_empty();
    let is_open_to_peers = has_peers && config.peer_auth != PeerAuthMode::Require;
    match (config.auth == AuthMode::On, is_open_to_peers) {
        (true, false) => "",
        (true, true) => "peers",
        (false, false) => "clients",
        (false, true) => "clients and peers",
    }
}

fn insecure_reason(config: &Config) -> String {
    let open_to = open_to(config);
    let mut needed = Vec::new();
    if open_to.contains("clients") {
        needed.push("--auth on with --token-file");
    }
    if open_to.contains("peers") {
        needed.push("--peer-ca or --peer-secret-file");
    }
    format!(
        "the node would listen on {}, beyond this machine, and be open to {open_to}: everybody who reaches the port could \
         read, change and delete everything. Give {}, or --insecure yes if only trusted machines reach the port",
        config.listen,
        needed.join(" and "),
    )
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
        let mut known = SETTINGS.iter().flat_map(|setting| setting.old_names.iter().chain([&setting.name]));
        let Some(known) = known.find(|known| **known == name) else {
            return Err(ConfigError::UnknownKey { path: path.to_path_buf(), key });
        };
        let text = value_text(&value)
            .ok_or_else(|| bad(format!("{key}: a text, a number or a list of texts is needed")))?;
        if values.insert(*known, text).is_some() {
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
mod tests;
