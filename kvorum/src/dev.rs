//! `kvorum dev`: a cluster in one process on this machine, with one store per node and real sockets between the nodes.

use super::serve::{listen_for_signals, read_config_with};
use super::{FAILED, USAGE, complain, flag, text_of, tls, token};
use clap::{Arg, ArgAction, ArgMatches, Command};
use kvorum_server::config::{self, Config, Resolved, SETTINGS};
use kvorum_server::log;
use kvorum_server::node::{self, Node};
use kvorum_server::storage::data_dir;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The most nodes of a cluster in one process.
const NODES_MAX: u16 = 64;

/// The mode of a file with a token.
const SECRET_MODE: u32 = 0o600;

/// Settings that `dev` chooses for each node, or that make no sense for several nodes.
const DECIDED: [&str; 7] =
    ["listen", "cluster", "advertise", "data-dir", "threads", "audit-log", "admin-socket"];

pub(super) fn command() -> Command {
    let command = Command::new("dev")
        .about("Runs a cluster in one process, for development")
        .long_about(
            "Runs a cluster in one process: one store per node, real sockets between them. Every setting of serve that \
             is not decided per node can be given, too.",
        )
        .arg(flag("config", "FILE", "TOML file with settings of the nodes [env: KVORUM_CONFIG]"))
        .arg(flag("nodes", "N", "How many nodes [default: 3]"))
        .arg(flag("base-port", "PORT", "The first node's port; the others follow [default: 8080]"))
        .arg(flag("data-dir", "DIR", "Directory under which each node has its own [default: ./data]"))
        .arg(flag("threads", "N", "Network threads of each node [default: 1]"))
        .arg(
            Arg::new("secure")
                .long("secure")
                .action(ArgAction::SetTrue)
                .help("With TLS between all, certificates of the nodes, and a token: makes what it needs under the data directory"),
        );
    let command =
        config::hidden_names().fold(command, |command, name| command.arg(flag(name, "VALUE", "").hide(true)));
    SETTINGS.iter().filter(|setting| !DECIDED.contains(&setting.name)).fold(command, |command, setting| {
        let default = if setting.default.is_empty() {
            String::new()
        } else {
            format!(" [default: {}]", setting.default)
        };
        command.arg(flag(setting.name, setting.value_name, format!("{}{default}", setting.help)))
    })
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let secured = match matches.get_flag("secure").then(|| Secured::open(matches)).transpose() {
        Ok(secured) => secured,
        Err(reason) => return complain(reason, FAILED),
    };
    let (mut configs, resolved): (Vec<Config>, Vec<_>) = match configs(matches, secured.as_ref()) {
        Ok(nodes) => nodes.into_iter().unzip(),
        Err(reason) => return complain(reason, USAGE),
    };
    if let Some(first) = configs.first() {
        log::start(first.log_format);
    }
    // The nodes share their settings, but for those that this command decides.
    if let Some(first) = resolved.first() {
        config::warn_of_old_names(first);
    }
    data_dir::keep_files_private();
    node::fit_connections(&mut configs, node::raise_file_limit());
    let Some(stop) = listen_for_signals() else { return ExitCode::from(FAILED) };
    let mut nodes = Vec::with_capacity(configs.len());
    for config in &configs {
        match Node::start(config) {
            Ok(node) => nodes.push(node),
            Err(error) => {
                tracing::error!(%error, node = config.advertise, "the node does not start");
                return ExitCode::from(FAILED);
            }
        }
    }
    if nodes.iter().all(|node| node.wait_until_ready_or(&stop)) {
        tell(&configs, secured.as_ref());
    }
    let signal = stop.wait(&nodes).signal_or_exit(FAILED);
    tracing::info!(signal, "draining: answering the requests under way, then stopping");
    // All nodes know it before any of them ends a connection, so that none logs another as lost.
    nodes.iter().for_each(Node::note_draining);
    // All nodes are told before any is awaited, so that no node waits for another's drain.
    nodes.iter().for_each(Node::begin_to_stop);
    nodes.into_iter().for_each(Node::stop);
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

/// Prints that the nodes serve, and how to try them.
fn tell(configs: &[Config], secured: Option<&Secured>) {
    for config in configs {
        tracing::info!(
            version = kvorum_lab::version(),
            url = config.advertise,
            data_dir = %config.data_dir.display(),
            durability = node::durability_name(config.durability),
            "kvorum serves"
        );
    }
    if let (Some(first), Some(secured)) = (configs.first(), secured) {
        secured.tell(&first.advertise);
    } else if let Some(first) = configs.first() {
        tracing::info!(
            "any node answers: curl -X PUT --data hello '{0}/v0/entity?id=greeting', or {0}/console in a browser; Ctrl-C stops all",
            first.advertise
        );
    }
}

/// The nodes' configurations, and the sources of their values.
fn configs(matches: &ArgMatches, secured: Option<&Secured>) -> Result<Vec<(Config, Vec<Resolved>)>, String> {
    let ports = ports_of(matches)?;
    let scheme = if secured.is_some() { "https" } else { "http" };
    let url = |port: u16| format!("{scheme}://127.0.0.1:{port}");
    let urls: Vec<String> = ports.clone().map(url).collect();
    let data_dir = data_dir_of(matches);
    let threads = text_of(matches, "threads").unwrap_or("1");
    let one = |port: u16| {
        let mut decided = BTreeMap::from([
            ("listen", format!("127.0.0.1:{port}")),
            ("cluster", urls.join(",")),
            ("advertise", url(port)),
            ("data-dir", format!("{data_dir}/{port}")),
            ("threads", threads.to_owned()),
        ]);
        if let Some(secured) = secured {
            decided.extend(secured.settings(&url(port))?);
        }
        read_config_with(matches, decided)
    };
    ports.map(one).collect()
}

fn data_dir_of(matches: &ArgMatches) -> &str {
    text_of(matches, "data-dir").unwrap_or("./data")
}

/// The nodes' ports.
fn ports_of(matches: &ArgMatches) -> Result<RangeInclusive<u16>, String> {
    let number = |name: &str, default: u16| match text_of(matches, name) {
        None => Ok(default),
        Some(text) => text
            .parse::<u16>()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| format!("{name} = {text:?} (flag --{name}): allowed is a number from 1")),
    };
    let (count, base) = (number("nodes", 3)?, number("base-port", 8080)?);
    if count > NODES_MAX {
        return Err(format!("nodes = {count} (flag --nodes): at most {NODES_MAX}"));
    }
    let Some(last) = base.checked_add(count - 1) else {
        return Err(format!(
            "base-port = {base} (flag --base-port): it needs {count} ports in a row, and the highest port is 65535"
        ));
    };
    Ok(base..=last)
}

/// What a secured cluster has under its data directory: certificates, tokens, and the operator's token.
struct Secured {
    folder: tls::Folder,
    tokens: PathBuf,
    operator: PathBuf,
}

impl Secured {
    /// Makes what is not there yet.
    fn open(matches: &ArgMatches) -> Result<Self, String> {
        let data_dir = Path::new(data_dir_of(matches));
        let text = |error: tls::TlsFailure| error.to_string();
        let folder = tls::Folder::open(&data_dir.join("tls")).map_err(text)?;
        let nodes = folder.authority(tls::NODES).map_err(text)?;
        for port in ports_of(matches)? {
            folder.node(&nodes, &format!("https://127.0.0.1:{port}"), false).map_err(text)?;
        }
        let clients = folder.authority(tls::CLIENTS).map_err(text)?;
        folder.client(&clients, tls::ADMIN, tls::ADMIN).map_err(text)?;
        let secured =
            Self { folder, tokens: data_dir.join("tokens.toml"), operator: data_dir.join("operator.token") };
        // The token's text comes last: as long as it is not there, another one is made.
        if !secured.operator.exists() {
            let made = token::make_operator(&secured.tokens, tls::ADMIN)?;
            tls::write(&secured.operator, SECRET_MODE, &made).map_err(text)?;
        }
        Ok(secured)
    }

    /// The settings of the node at `url`.
    fn settings(&self, url: &str) -> Result<[(&'static str, String); 6], String> {
        let nodes = self.folder.authority(tls::NODES).map_err(|error| error.to_string())?;
        let (name, _) = self.folder.node(&nodes, url, false).map_err(|error| error.to_string())?;
        let text = |path: PathBuf| path.display().to_string();
        Ok([
            ("tls-cert", text(self.folder.cert(&name))),
            ("tls-key", text(self.folder.key(&name))),
            ("tls-client-ca", text(self.folder.cert(tls::CLIENTS))),
            ("peer-ca", text(self.folder.cert(tls::NODES))),
            ("auth", "on".to_owned()),
            ("token-file", text(self.tokens.clone())),
        ])
    }

    /// Prints how to use the cluster whose first node is at `url`.
    fn tell(&self, url: &str) {
        let ca = self.folder.cert(tls::NODES);
        let (ca, operator) = (ca.display(), self.operator.display());
        let (cert, key) = (self.folder.cert(tls::ADMIN), self.folder.key(tls::ADMIN));
        let (cert, key) = (cert.display(), key.display());
        tracing::info!(
            "a token: curl --cacert {ca} -H \"Authorization: Bearer $(cat {operator})\" -X PUT --data hello '{url}/v0/entity?id=greeting'"
        );
        tracing::info!(
            "a certificate: curl --cacert {ca} --cert {cert} --key {key} '{url}/v0/entity?id=greeting'"
        );
        tracing::info!("the program: kvorum get --url {url} --ca {ca} --token-file {operator} greeting");
        tracing::info!("Ctrl-C stops all");
    }
}
