//! `kvorum bootstrap` and `kvorum trust-store`: store an operator's decision about one data directory, for its next
//! start only.

use super::{FAILED, USAGE, complain, print, text_of};
use clap::{Arg, ArgMatches, Command};
use kvorum_server::storage::data_dir::{DataDir, DataDirError};
use kvorum_server::storage::identity::Vouch;
use std::path::Path;
use std::process::ExitCode;

pub(super) fn commands() -> [Command; 2] {
    let on_directory = |command: Command| {
        command.arg(
            Arg::new("dir").value_name("DIR").required(true).help("Data directory of a node that is stopped"),
        )
    };
    [
        on_directory(
            Command::new(Vouch::Bootstrap.name())
                .about("Makes a new node quorum-eligible before it has met all others, once")
                .long_about(
                    "Confirms, for the next start of a node, that no store of this node was ever lost: a new store \
                     is then quorum-eligible before it has met every other node. Only for a new cluster in which a \
                     node stays away. The command creates the directory if it does not exist.",
                ),
        ),
        on_directory(
            Command::new(Vouch::TrustStore.name())
                .about("Makes a node quorum-eligible before it has met a majority, once")
                .long_about(
                    "Confirms, for the next start of a node, that the directory is the one of its last run and not \
                     an older copy: the node then serves alone what it can serve alone. Only if the other nodes stay \
                     away, and the directory was moved or its file system keeps no birth times.",
                ),
        ),
    ]
}

pub(super) fn run(name: &str, matches: &ArgMatches) -> ExitCode {
    let vouch = if name == Vouch::Bootstrap.name() { Vouch::Bootstrap } else { Vouch::TrustStore };
    let path = Path::new(text_of(matches, "dir").unwrap_or_default());
    if vouch == Vouch::TrustStore && !DataDir::is_one(path) {
        return complain(format!("{} is not a data directory of kvorum", path.display()), USAGE);
    }
    // The directory is locked meanwhile: a running node would never read the decision.
    let data_dir = match DataDir::open(path) {
        Ok(data_dir) => data_dir,
        Err(error @ DataDirError::InUse { .. }) => {
            return complain(format!("{error}: stop the node first"), USAGE);
        }
        Err(error) => return complain(error, USAGE),
    };
    match vouch.leave(data_dir.path()) {
        Ok(()) => print(format!("the next start with {} uses your confirmation: {name}\n", path.display())),
        Err(error) => complain(format!("cannot write in {}: {error}", path.display()), FAILED),
    }
}
