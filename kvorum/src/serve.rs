//! `kvorum serve`: reads the configuration, starts the node, and waits for a signal to stop.

use super::{FAILED, USAGE, complain, flag, print, text_of};
use clap::{Arg, ArgAction, ArgMatches, Command};
use kvorum_server::config::{self, Config, Resolved, SETTINGS};
use kvorum_server::log;
use kvorum_server::node::{self, Node, StopSignals};
use kvorum_server::storage::data_dir;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

pub(super) fn command() -> Command {
    let command = Command::new("serve")
        .about("Runs a node")
        .long_about("Runs a node. Flags win over KVORUM_* environment variables over the file over defaults.")
        .arg(flag("config", "FILE", "TOML file with any of these settings [env: KVORUM_CONFIG]"))
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Prints the configuration with each value's origin, and ends"),
        );
    let command =
        config::hidden_names().fold(command, |command, name| command.arg(flag(name, "VALUE", "").hide(true)));
    SETTINGS.iter().fold(command, |command, setting| {
        let default = if setting.default.is_empty() {
            String::new()
        } else {
            format!(" [default: {}]", setting.default)
        };
        let help = format!("{}{default} [env: {}]", setting.help, config::variable_of(setting.name));
        command.arg(flag(setting.name, setting.value_name, help))
    })
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let (mut config, resolved) = match read_config(matches) {
        Ok(config) => config,
        Err(reason) => return complain(reason, USAGE),
    };
    if matches.get_flag("print-config") {
        return print(config::print(&resolved));
    }
    log::start(config.log_format);
    config::warn_of_old_names(&resolved);
    let environment = environment();
    for name in config::unknown_variables(&environment) {
        tracing::warn!(name, "this environment variable is not a setting of kvorum: it is ignored");
    }
    if let Some(text) = environment.get(kvorum_server::crash::VARIABLE)
        && let Err(reason) = kvorum_server::crash::arm(text)
    {
        return complain(reason, USAGE);
    }
    node::fit_connections(std::slice::from_mut(&mut config), node::raise_file_limit());
    serve(&config)
}

fn serve(config: &Config) -> ExitCode {
    data_dir::keep_files_private();
    let Some(stop) = listen_for_signals() else { return ExitCode::from(FAILED) };
    let node = match Node::start(config) {
        Ok(node) => node,
        Err(error) => {
            tracing::error!(%error, "the node does not start");
            let code = if error.is_misconfigured() { USAGE } else { FAILED };
            return ExitCode::from(code);
        }
    };
    if node.wait_until_ready_or(&stop) {
        tracing::info!(
            version = kvorum_lab::version(),
            address = %node.address(),
            data_dir = %config.data_dir.display(),
            durability = node::durability_name(config.durability),
            cluster = config.cluster.join(","),
            "kvorum serves"
        );
    }
    let signal = stop.wait(std::slice::from_ref(&node)).signal_or_exit(FAILED);
    tracing::info!(signal, "draining: answering the requests under way, then stopping");
    node.stop();
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

/// Listens for the signals that end the process, or logs an error.
pub(super) fn listen_for_signals() -> Option<StopSignals> {
    StopSignals::listen().inspect_err(|error| tracing::error!(%error, "cannot listen for signals")).ok()
}

fn read_config(matches: &ArgMatches) -> Result<(Config, Vec<Resolved>), String> {
    read_config_with(matches, BTreeMap::new())
}

/// Reads the configuration, with `decided` as if the flags had set it.
pub(super) fn read_config_with(
    matches: &ArgMatches,
    decided: BTreeMap<&'static str, String>,
) -> Result<(Config, Vec<Resolved>), String> {
    let given = |name: &str| matches.try_get_one::<String>(name).ok().flatten().cloned();
    let names = SETTINGS.iter().map(|setting| setting.name).chain(config::hidden_names());
    let mut flags: BTreeMap<&'static str, String> =
        names.filter_map(|name| Some((name, given(name)?))).collect();
    flags.extend(decided);
    let environment = environment();
    let path = text_of(matches, "config").or_else(|| environment.get("KVORUM_CONFIG").map(String::as_str));
    let file = match path.map(Path::new) {
        #[expect(clippy::disallowed_methods, reason = "the configuration file is read here")]
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => Some((path, text)),
            Err(error) => {
                return Err(format!("cannot read the configuration file {}: {error}", path.display()));
            }
        },
        None => None,
    };
    let file = file.as_ref().map(|(path, text)| (*path, text.as_str()));
    config::resolve(&flags, &environment, file).map_err(|error| error.to_string())
}

/// The process's environment; variables that are not UTF-8 are not settings of kvorum, and are left out.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
