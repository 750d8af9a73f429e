//! `kvorum dev`: a cluster in one process on this machine, with one store per node and real sockets between the nodes.

use super::serve::{listen_for_signals, read_config_with};
use super::{FAILED, USAGE, complain, flag, text_of, tls, token};
use clap::{Arg, ArgAction, ArgMatches, Command};
use kvorum_server::config::{self, Config, Resolved, SETTINGS};
use kvorum_server::http::{Another, Order};
use kvorum_server::log;
use kvorum_server::node::{self, Node, NodeError};
use kvorum_server::storage::data_dir;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::task::Poll;

/// The most nodes of a cluster in one process.
const NODES_MAX: u16 = 64;

/// The mode of a file with a token.
const SECRET_MODE: u32 = 0o600;

/// The mode of another file.
const FILE_MODE: u32 = 0o644;

/// Settings that `dev` chooses for each node, or that make no sense for several nodes.
const DECIDED: [&str; 8] =
    ["listen", "cluster", "join", "advertise", "data-dir", "threads", "audit-log", "admin-socket"];

pub(super) fn command() -> Command {
    let command = Command::new("dev")
        .about("Runs a cluster in one process, for development")
        .long_about(
            "Runs a cluster in one process: one store per node, real sockets between them. Every setting of serve that \
             is not decided per node can be given, too. \"kvorum cluster plan add\" without a URL starts one more node in the \
             process, and one that was removed is stopped; the same command runs all members again.",
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
    let (ports, joined) = match ports_of(matches) {
        Ok(ports) => (ports.clone(), joined_ports(&joined_file(data_dir_of(matches), &ports))),
        Err(reason) => return complain(reason, USAGE),
    };
    let dev = Dev { matches, secured, ports };
    let all = dev.ports.clone().map(|port| dev.config(port, &[])).chain(joined.iter().map(|port| {
        let members = dev.urls();
        dev.config(*port, &members)
    }));
    let (mut configs, resolved): (Vec<Config>, Vec<_>) = match all.collect::<Result<Vec<_>, _>>() {
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
    let (another, mut orders) = Another::new();
    let mut nodes = Vec::with_capacity(configs.len());
    for config in &configs {
        match Node::start_beside(config, Some(&another)) {
            Ok(node) => nodes.push(node),
            Err(error @ NodeError::Removed { .. }) => {
                tracing::info!(%error, "the node is no member any more");
            }
            Err(error) => {
                tracing::error!(%error, node = config.advertise, "the node does not start");
                return ExitCode::from(FAILED);
            }
        }
    }
    // One that joined may still wait for a plan.
    if nodes.iter().filter(|node| !node.waits_to_join()).all(|node| node.wait_until_ready_or(&stop)) {
        let serving = configs.iter().filter(|config| nodes.iter().any(|node| node.url() == config.advertise));
        tell(&serving.cloned().collect::<Vec<_>>(), dev.secured.as_ref());
    }
    let connections_max = configs.first().map_or(1, |config| config.limits.connections_max);
    let signal = loop {
        let happens = async {
            tokio::select! {
                order = orders.recv() => Happening::Order(order),
                place = first_removed(&nodes) => Happening::Removed(place),
            }
        };
        match stop.wait_beside(&nodes, happens) {
            Err(stop) => break stop.signal_or_exit(FAILED),
            Ok(Happening::Order(order)) => {
                let started = dev.start_another(&mut nodes, &another, connections_max);
                // Nobody waits for it any more if the order's request has ended; the next order finds the node.
                let _ = order.map(|order| order.send(started));
            }
            Ok(Happening::Removed(place)) => {
                let node = nodes.remove(place);
                tracing::info!(node = node.url(), "the node was removed from the cluster: it is stopped");
                node.stop();
            }
        }
    };
    tracing::info!(signal, "draining: answering the requests under way, then stopping");
    // All nodes know it before any of them ends a connection, so that none logs another as lost.
    nodes.iter().for_each(Node::note_draining);
    // All nodes are told before any is awaited, so that no node waits for another's drain.
    nodes.iter().for_each(Node::begin_to_stop);
    nodes.into_iter().for_each(Node::stop);
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

/// What the process waits for, beside its end.
enum Happening {
    /// Another node is to be started.
    Order(Option<Order>),
    /// The node at this place was removed from the cluster.
    Removed(usize),
}

/// Waits until one of `nodes` was removed from the cluster. The last one never is.
async fn first_removed(nodes: &[Node]) -> usize {
    let mut removals: Vec<_> = nodes.iter().map(|node| Box::pin(node.until_removed())).collect();
    std::future::poll_fn(|cx| {
        let place = removals.iter_mut().position(|removal| removal.as_mut().poll(cx).is_ready());
        place.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The file with the ports of the nodes that were started later, a line each, of the cluster that begins with `first`. Several
/// clusters may share a directory.
fn joined_file(data_dir: &str, first: &RangeInclusive<u16>) -> PathBuf {
    Path::new(data_dir).join(format!("joined-{}.txt", first.start()))
}

/// The ports in `file`; none where there is no such file.
#[expect(clippy::disallowed_methods, reason = "a file of this command")]
fn joined_ports(file: &Path) -> Vec<u16> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).take(usize::from(NODES_MAX)).collect()
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

/// What the nodes have in common.
struct Dev<'m> {
    matches: &'m ArgMatches,
    secured: Option<Secured>,
    /// The ports of the nodes that the cluster begins with.
    ports: RangeInclusive<u16>,
}

impl Dev<'_> {
    fn url(&self, port: u16) -> String {
        let scheme = if self.secured.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{port}")
    }

    /// The URLs of the nodes that the cluster begins with.
    fn urls(&self) -> Vec<String> {
        self.ports.clone().map(|port| self.url(port)).collect()
    }

    /// The configuration of the node at `port`, which is to join `members`, or belongs to the first ones where there are none.
    /// With the sources of its values.
    fn config(&self, port: u16, members: &[String]) -> Result<(Config, Vec<Resolved>), String> {
        let cluster = if members.is_empty() { self.urls().join(",") } else { String::new() };
        let mut decided = BTreeMap::from([
            ("listen", format!("127.0.0.1:{port}")),
            ("cluster", cluster),
            ("join", members.join(",")),
            ("advertise", self.url(port)),
            ("data-dir", format!("{}/{port}", data_dir_of(self.matches))),
            ("threads", text_of(self.matches, "threads").unwrap_or("1").to_owned()),
        ]);
        if let Some(secured) = &self.secured {
            decided.extend(secured.settings(&self.url(port))?);
        }
        read_config_with(self.matches, decided)
    }

    /// Starts one more node, which waits to join those that run, or finds one that waits already. Returns its URL.
    fn start_another(
        &self,
        nodes: &mut Vec<Node>,
        another: &Another,
        connections_max: usize,
    ) -> Result<String, String> {
        if let Some(waiting) = nodes.iter().find(|node| node.waits_to_join()) {
            return Ok(waiting.url().to_owned());
        }
        if nodes.len() >= usize::from(NODES_MAX) {
            return Err(format!("this process runs {NODES_MAX} nodes, and no more than that"));
        }
        let members: Vec<String> = nodes.iter().map(|node| node.url().to_owned()).collect();
        let port = self.free_port().ok_or("no port above those of the other nodes is free")?;
        let (mut config, _) = self.config(port, &members)?;
        // It is noted before there is a store: whatever becomes of it is found again.
        let file = joined_file(data_dir_of(self.matches), &self.ports);
        let ports = joined_ports(&file).into_iter().filter(|known| *known != port).chain([port]);
        let text = ports.fold(String::new(), |text, port| text + &format!("{port}\n"));
        tls::write(&file, FILE_MODE, &text).map_err(|error| error.to_string())?;
        config.limits.connections_max = connections_max;
        let node = Node::start_beside(&config, Some(another)).map_err(|error| error.to_string())?;
        tracing::info!(
            url = node.url(),
            data_dir = %config.data_dir.display(),
            "started another node, which waits for the plan to be applied"
        );
        let url = node.url().to_owned();
        nodes.push(node);
        Ok(url)
    }

    /// The lowest free port above those of the first nodes, at which there was no node before.
    #[expect(clippy::disallowed_types, reason = "a look whether a port is free")]
    fn free_port(&self) -> Option<u16> {
        let data_dir = Path::new(data_dir_of(self.matches));
        let mut ports = self.ports.end().checked_add(1)?..=u16::MAX;
        ports.find(|port| {
            let is_unused = !data_dir.join(port.to_string()).exists();
            is_unused && std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()
        })
    }
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
