//! File descriptors: how many the process may have, and how many of them are for connections.

use crate::config::Config;
use crate::http::peer_places::PEER_CONNECTIONS_MAX;
use crate::http::server;
use crate::storage;

/// Raises the process's limit of open files to the system's maximum: tables and connections need them. Returns the
/// limit.
pub fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Descriptors for everything except connections and tables: journals, pipes, pollers, profiles.
const OTHER_DESCRIPTORS: u64 = 96;

/// Bounds the connections of each of `configs`, which share this process, by the descriptors that it may have.
/// Descriptors for the stores and for the links between nodes are reserved. Logs a warning if the bound is below the
/// configured number.
pub fn fit_connections(configs: &mut [Config], descriptors: u64) {
    let nodes = configs.len().max(1) as u64;
    let each = descriptors / nodes;
    for (place, config) in configs.iter_mut().enumerate() {
        let others = config.cluster.len().saturating_sub(1) as u64;
        // One link per thread to each other node, and the most connections that each of them may have to this node.
        let links = others.saturating_mul(config.threads as u64 + PEER_CONNECTIONS_MAX as u64).min(each / 4);
        let reserve = (storage::lsm::descriptors_max(each) + OTHER_DESCRIPTORS)
            .saturating_add(links)
            .saturating_add(server::SPARE_PLACES as u64);
        let fitting = usize::try_from(each.saturating_sub(reserve)).unwrap_or(usize::MAX).max(1);
        let configured = config.limits.connections_max;
        config.limits.connections_max = fitting.min(configured);
        // The nodes of one process have the same settings, so one line is enough for all of them.
        if place > 0 {
            continue;
        }
        if fitting < configured {
            tracing::warn!(
                connections = fitting,
                configured,
                limit = descriptors,
                reserve,
                "the limit of file descriptors allows fewer connections per node than --max-connections: raise the limit \
                 (ulimit -n, LimitNOFILE=) or lower the setting"
            );
        } else {
            tracing::info!(
                connections = configured,
                limit = descriptors,
                reserve,
                "the limit of file descriptors allows --max-connections"
            );
        }
    }
}
