//! `kvorum dev`: a cluster in one process on this machine, with one store per node and real sockets between the nodes.

use super::serve::{listen_for_signals, read_config_with};
use super::{FAILED, USAGE, complain, flag, text_of};
use clap::{ArgMatches, Command};
use kvorum_server::config::{self, Config, Resolved, SETTINGS};
use kvorum_server::log;
use kvorum_server::node::{self, Node};
use kvorum_server::storage::data_dir;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// The most nodes of a cluster in one process.
const NODES_MAX: u16 = 64;

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
        .arg(flag("threads", "N", "Network threads of each node [default: 1]"));
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
    let (mut configs, resolved): (Vec<Config>, Vec<_>) = match configs(matches) {
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
        tell(&configs);
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
fn tell(configs: &[Config]) {
    for config in configs {
        tracing::info!(
            version = kvorum_lab::version(),
            url = config.advertise,
            data_dir = %config.data_dir.display(),
            durability = node::durability_name(config.durability),
            "kvorum serves"
        );
    }
    if let Some(first) = configs.first() {
        tracing::info!(
            "any node answers: curl -X PUT --data hello '{0}/v0/entity?id=greeting', or {0}/console in a browser; Ctrl-C stops all",
            first.advertise
        );
    }
}

/// The nodes' configurations, and the sources of their values.
fn configs(matches: &ArgMatches) -> Result<Vec<(Config, Vec<Resolved>)>, String> {
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
    let urls: Vec<String> = (base..=last).map(|port| format!("http://127.0.0.1:{port}")).collect();
    let data_dir = text_of(matches, "data-dir").unwrap_or("./data");
    let threads = text_of(matches, "threads").unwrap_or("1");
    let one = |port: u16| {
        let decided = BTreeMap::from([
            ("listen", format!("127.0.0.1:{port}")),
            ("cluster", urls.join(",")),
            ("advertise", format!("http://127.0.0.1:{port}")),
            ("data-dir", format!("{data_dir}/{port}")),
            ("threads", threads.to_owned()),
        ]);
        read_config_with(matches, decided)
    };
    (base..=last).map(one).collect()
}
