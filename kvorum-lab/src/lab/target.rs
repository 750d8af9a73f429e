//! The settings of a configuration whose program is not kvorum: how a lab file writes them, and what they mean.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::process::Signal;
use serde::{Deserialize, Deserializer};

use super::reference;

/// The placeholders of a command and of its environment.
pub const PLACEHOLDERS: [&str; 8] =
    ["port", "url", "urls", "ports", "data", "node", GC_LOG, reference::PLACEHOLDER];

/// The placeholder of a file into which a JVM may log its collections.
pub const GC_LOG: &str = "gc-log";

/// The answer that shows that a node serves requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// The port accepts connections.
    Tcp,
    /// A GET of `target` is answered with `status`.
    Get {
        /// Path and query.
        target: String,
        /// The status.
        status: u16,
    },
}

impl Ready {
    /// What a node of kvorum's contract answers when it serves.
    pub fn of_contract() -> Self {
        Self::Get { target: "/v0/status".into(), status: 200 }
    }
}

impl FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let read = match words[..] {
            ["tcp"] => Some(Self::Tcp),
            ["GET", target, status] if target.starts_with('/') => {
                let status = status.parse().ok().filter(|status| (100..=599).contains(status));
                status.map(|status| Self::Get { target: target.into(), status })
            }
            _ => None,
        };
        read.ok_or_else(|| format!("{text:?}: wanted \"tcp\" or \"GET PATH STATUS\", as \"GET /health 200\""))
    }
}

/// The signal that asks a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop(pub Signal);

impl FromStr for Stop {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "SIGTERM" => Ok(Self(Signal::TERM)),
            "SIGINT" => Ok(Self(Signal::INT)),
            "SIGQUIT" => Ok(Self(Signal::QUIT)),
            "SIGKILL" => Ok(Self(Signal::KILL)),
            _ => Err(format!("{text:?} is not SIGTERM, SIGINT, SIGQUIT or SIGKILL")),
        }
    }
}

/// Reads a setting from its text.
pub(super) fn parsed<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// The values of the placeholders for one process.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    /// The number of the process, from 1.
    pub node: u16,
    /// The addresses that the process serves; not empty.
    pub own: &'a [SocketAddr],
    /// The addresses of all nodes.
    pub all: &'a [SocketAddr],
    /// Its directory.
    pub data: &'a Path,
    /// The file for a JVM's log of its collections.
    pub gc_log: &'a Path,
    /// The jar of the Java reference; empty if no command names it.
    pub reference: &'a Path,
}

impl Values<'_> {
    /// `text` with the values of its placeholders.
    pub fn fill(&self, text: &str) -> String {
        let joined = |addresses: &[SocketAddr], of: &dyn Fn(&SocketAddr) -> String| {
            addresses.iter().map(of).collect::<Vec<_>>().join(",")
        };
        let url = |address: &SocketAddr| format!("http://{address}");
        let port = |address: &SocketAddr| address.port().to_string();
        let first = self.own.get(..1).unwrap_or_default();
        let values = [
            joined(first, &port),
            joined(first, &url),
            joined(self.all, &url),
            joined(self.all, &port),
            self.data.display().to_string(),
            self.node.to_string(),
            self.gc_log.display().to_string(),
            self.reference.display().to_string(),
        ];
        let mut filled = text.to_owned();
        for (name, value) in PLACEHOLDERS.iter().zip(values) {
            filled = filled.replace(&format!("{{{name}}}"), &value);
        }
        filled
    }
}

/// Checks the words of a command and its environment.
///
/// # Errors
/// A sentence with the mistake.
pub fn check_command(command: &[String], environment: &BTreeMap<String, String>) -> Result<(), String> {
    if command.first().is_none_or(String::is_empty) {
        return Err("command: a program is needed".into());
    }
    for text in command.iter().chain(environment.values()) {
        if let Some(name) = unknown_placeholder(text, &PLACEHOLDERS) {
            let known: Vec<String> = PLACEHOLDERS.iter().map(|name| format!("{{{name}}}")).collect();
            return Err(format!("{{{name}}} is not known in {text:?}; known are {}", known.join(", ")));
        }
    }
    let has_port = command
        .iter()
        .chain(environment.values())
        .any(|text| ["{port}", "{url}", "{urls}", "{ports}"].iter().any(|name| text.contains(name)));
    if has_port { Ok(()) } else { Err("command: the program is not told its port: {port} is missing".into()) }
}

/// The first name in braces that is not one of `known`.
pub(super) fn unknown_placeholder<'a>(text: &'a str, known: &[&str]) -> Option<&'a str> {
    let names = text.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name));
    names
        .filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
        .find(|name| !known.contains(name))
}

/// The file that would be started as `program`; `None` if there is none.
pub fn find_program(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: settings are read, and mistakes are refused. Method: tables.
    #[test]
    fn settings_are_read() {
        assert_eq!("tcp".parse(), Ok(Ready::Tcp));
        assert_eq!("GET /v0/status 200".parse(), Ok(Ready::of_contract()));
        for bad in ["", "udp", "GET /", "GET / 20", "GET x 200", "PUT / 200", "GET / 200 now"] {
            assert!(bad.parse::<Ready>().is_err(), "{bad:?}");
        }
        assert_eq!("SIGINT".parse(), Ok(Stop(Signal::INT)));
        assert!("TERM".parse::<Stop>().is_err());
    }

    /// Goal: placeholders get the values of their process. Method: the second of two processes.
    #[test]
    fn placeholders_are_filled() {
        let all: [SocketAddr; 2] = ["127.0.0.1:81".parse().unwrap(), "127.0.0.1:82".parse().unwrap()];
        let (data, gc_log, reference) = (Path::new("/d/2"), Path::new("/d/2.gc"), Path::new("r.jar"));
        let values = Values { node: 2, own: &all[1..], all: &all, data, gc_log, reference };
        let text = "{node} {port} {url} {urls} {ports} {data}/x {gc-log} {java-reference} {\"json\": 1}";
        let expect = "2 82 http://127.0.0.1:82 http://127.0.0.1:81,http://127.0.0.1:82 81,82 /d/2/x /d/2.gc r.jar {\"json\": 1}";
        assert_eq!(values.fill(text), expect);
    }

    /// Goal: commands that cannot work are refused before anything starts. Method: one mistake each.
    #[test]
    fn commands_are_checked() {
        let check = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            check_command(&words, &BTreeMap::new())
        };
        assert_eq!(check(&["server", "{port}"]), Ok(()));
        assert!(check(&[]).unwrap_err().contains("a program is needed"));
        assert!(check(&["server", "{prt}"]).unwrap_err().contains("{prt} is not known"));
        assert!(check(&["server", "8080"]).unwrap_err().contains("{port} is missing"));
        assert!(find_program("sh").is_some() && find_program("/bin/sh").is_some());
        assert_eq!(find_program("no-such-program"), None);
    }
}
