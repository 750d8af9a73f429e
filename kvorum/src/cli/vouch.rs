//! `kvorum bootstrap` and `kvorum trust-store`: store an operator's decision about one data directory, for its next
//! start only.

use super::{FAILED, USAGE, complain, print, text_of};
use crate::storage::data_dir::{DataDir, DataDirError};
use crate::storage::identity::Vouch;
use clap::{Arg, ArgMatches, Command};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn commands() -> [Command; 2] {
    let on_directory = |command: Command| {
        command.arg(
            Arg::new("dir")
                .value_name("DIR")
                .required(true)
                .help("Data directory of a node that does not run"),
        )
    };
    [
        on_directory(
            Command::new(Vouch::Bootstrap.name())
                .about("Lets a new node vote before it has met all others, once")
                .long_about(
                    "Vouches, for the next start of a node, that no store of it was ever lost: a new store then votes \
                     before it has met every other node. Only for a new cluster of which a node stays away. The \
                     directory is made if it is not there.",
                ),
        ),
        on_directory(
            Command::new(Vouch::TrustStore.name())
                .about("Lets a node vote before it has met a majority, once")
                .long_about(
                    "Vouches, for the next start of a node, that the directory is the one that the node ran with last, \
                     and no older copy: it then serves alone what it can serve alone. Only where the other nodes stay \
                     away, and the directory was moved or its file system keeps no birth times.",
                ),
        ),
    ]
}

pub(super) fn run(name: &str, matches: &ArgMatches) -> ExitCode {
    let vouch = if name == Vouch::Bootstrap.name() { Vouch::Bootstrap } else { Vouch::TrustStore };
    let path = Path::new(text_of(matches, "dir").unwrap_or_default());
    if vouch == Vouch::TrustStore && !DataDir::is_one(path) {
        return complain(format!("{} is no data directory of kvorum's", path.display()), USAGE);
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
        Ok(()) => print(format!("the next start with {} takes your word: {name}\n", path.display())),
        Err(error) => complain(format!("cannot write in {}: {error}", path.display()), FAILED),
    }
}
