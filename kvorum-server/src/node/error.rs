//! The reasons why a node does not start.

use super::peer_secrets::SecretFileError;
use crate::membership::StartError;
use crate::replica::ReplicaError;
use crate::security::file::FileError;
use crate::storage::EngineError;
use crate::storage::data_dir::DataDirError;
use crate::tls::TlsError;
use kvorum_core::TopologyError;
use kvorum_core::agreement::Epoch;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// The reason why a node did not start.
#[derive(Debug)]
pub enum NodeError {
    /// The data directory cannot be used.
    DataDir(DataDirError),
    /// The store cannot be opened.
    Store {
        /// The store's path.
        path: std::path::PathBuf,
        /// Why.
        error: EngineError,
    },
    /// The store opened, but its own rows cannot be read or written.
    Replica(ReplicaError),
    /// The configurations that the store has adopted are not for this node.
    Configuration(StartError),
    /// The configured nodes do not form a cluster.
    Topology(TopologyError),
    /// The node's URL is not one of the cluster's.
    NotAmongNodes {
        /// The URL.
        url: String,
    },
    /// The store belongs to another set of nodes.
    OtherCluster {
        /// The store's path.
        path: std::path::PathBuf,
    },
    /// The store belongs to another node of the cluster.
    OtherNode {
        /// The store's path.
        path: std::path::PathBuf,
        /// The URL of the node that it belongs to.
        owner: String,
        /// The URL of this node.
        url: String,
    },
    /// The node was removed from its cluster with this store.
    Removed {
        /// The store's path.
        path: std::path::PathBuf,
        /// The URL of this node.
        url: String,
        /// The epoch that removed it.
        epoch: Epoch,
    },
    /// The node cannot listen on the address.
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The tokens cannot be read.
    Tokens(FileError),
    /// The peer secrets cannot be read.
    PeerSecrets(SecretFileError),
    /// The certificates and keys cannot be used.
    Tls(TlsError),
    /// The audit log cannot be written.
    Audit {
        /// Its file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The node cannot listen on the socket for administration.
    AdminSocket {
        /// Its file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread or its runtime cannot be started.
    Thread(io::Error),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataDir(error) => error.fmt(f),
            Self::Store { path, error } => {
                write!(f, "the store in {} cannot be opened: {error}", path.display())
            }
            Self::Replica(error) => write!(f, "the store cannot be used: {error}"),
            Self::Configuration(error) => error.fmt(f),
            Self::Topology(error) => write!(f, "--cluster is not a valid cluster: {error}"),
            Self::NotAmongNodes { url } => write!(f, "{url} is not one of the cluster's nodes"),
            Self::OtherCluster { path } => write!(
                f,
                "the store in {} was written for another --cluster: reads would look for keys on the wrong nodes; \
                 give the nodes that it was written for, or another --data-dir",
                path.display()
            ),
            Self::OtherNode { path, owner, url } => write!(
                f,
                "the store in {} belongs to {owner}, and this node is {url}: the directory was exchanged or copied; start it \
                 as {owner}, or give {url} its own --data-dir, or an empty one that is refilled from the other nodes",
                path.display()
            ),
            Self::Removed { path, url, epoch } => write!(
                f,
                "{url} was removed from the cluster in epoch {epoch} with the store in {}, which never comes back: to use this \
                 machine again, start it with an empty --data-dir and with --join and the URL of a member",
                path.display()
            ),
            Self::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Tokens(error) => error.fmt(f),
            Self::PeerSecrets(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::Audit { path, source } => {
                write!(f, "cannot write --audit-log {}: {source}", path.display())
            }
            Self::AdminSocket { path, source } => {
                write!(f, "cannot listen on --admin-socket {}: {source}", path.display())
            }
            Self::Thread(source) => write!(f, "cannot start a thread: {source}"),
        }
    }
}

impl std::error::Error for NodeError {}

impl NodeError {
    /// Whether the operator named a data directory, a token file, or secrets or certificates that this node may not use.
    pub fn is_misconfigured(&self) -> bool {
        matches!(
            self,
            Self::DataDir(_)
                | Self::OtherCluster { .. }
                | Self::OtherNode { .. }
                | Self::Removed { .. }
                | Self::Configuration(_)
                | Self::Tokens(_)
                | Self::PeerSecrets(_)
                | Self::Tls(_)
        )
    }
}
