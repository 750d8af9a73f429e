//! The lab's own failures, which end the whole run. A node's failures are counts in the outcome.

use std::fmt;
use std::io;

/// Why a run could not be made, or its figures could not be read.
#[derive(Debug)]
pub enum LabError {
    /// The caller asked for something impossible.
    Usage(String),
    /// The machine refused: a file, a process, a socket.
    Machine {
        /// What was attempted, on what.
        attempted: String,
        /// The system's error.
        source: io::Error,
    },
    /// The process under measurement did not behave as the measurement needs.
    Subject(String),
}

impl LabError {
    /// Makes a [`LabError::Machine`] with the description of the attempt; for `map_err`.
    pub fn machine(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempted = attempted.into();
        move |source| Self::Machine { attempted, source }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Subject(text) => f.write_str(text),
            Self::Machine { attempted, source } => write!(f, "{attempted}: {source}"),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Machine { source, .. } => Some(source),
            Self::Usage(_) | Self::Subject(_) => None,
        }
    }
}
