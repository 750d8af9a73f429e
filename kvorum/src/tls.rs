//! `kvorum tls init|client`: certificates for the nodes of a cluster and for its clients, in one folder. It needs no running
//! node.
//!
//! There are two authorities, one for nodes and one for clients, so that a client's certificate never makes a node. Files
//! that are there already stay as they are: a second `init` with one more URL adds that node.

use super::{FAILED, USAGE, complain, flag, print, text_of};
use clap::{Arg, ArgAction, ArgMatches, Command};
use kvorum_server::authority::Authority as Named;
use kvorum_tls::authority::{Authority, Made, MakeError, Use};
use std::fmt;
use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The mode of keys: for their owner only.
const KEY_MODE: u32 = 0o600;
/// The mode of certificates.
const CERT_MODE: u32 = 0o644;
/// The mode of the folder.
const FOLDER_MODE: u32 = 0o700;
/// The longest file of an authority that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The name of the operator's certificate.
pub(super) const ADMIN: &str = "admin";

pub(super) fn command() -> Command {
    let in_folder = |command: Command| {
        command.arg(flag("dir", "DIR", "The folder of certificates and keys [default: ./tls]"))
    };
    Command::new("tls")
        .about("Makes certificates for nodes and clients")
        .long_about(
            "Makes certificates for nodes and clients in a folder: an authority of nodes, one of clients, a certificate for \
             each node and one for the operator. Keep the keys of the authorities off the nodes.",
        )
        .subcommand_required(true)
        .subcommand(
            in_folder(Command::new("init").about("Makes what is not there yet for the nodes at these URLs"))
                .arg(Arg::new("url").value_name("URL").required(true).num_args(1..).help("The nodes' URLs, such as https://node-a:8080"))
                .arg(
                    Arg::new("renew")
                        .long("renew")
                        .action(ArgAction::SetTrue)
                        .help("Makes the certificates of these nodes anew; running nodes take them within 5 s"),
                ),
        )
        .subcommand(
            in_folder(Command::new("client").about("Makes a certificate for a client"))
                .arg(Arg::new("name").value_name("NAME").required(true).help(
                    "The name in it: a DNS name or a URI; a token of the same --certificate gives it rights",
                )),
        )
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let done = match matches.subcommand() {
        Some(("init", matches)) => init(matches),
        Some(("client", matches)) => client(matches),
        _ => Err(TlsFailure::Usage("one of init and client is needed".to_owned())),
    };
    match done {
        Ok(text) => print(text),
        Err(error @ (TlsFailure::Usage(_) | TlsFailure::Make(_))) => complain(error, USAGE),
        Err(error) => complain(error, FAILED),
    }
}

/// Why there is no certificate.
#[derive(Debug)]
pub(super) enum TlsFailure {
    Usage(String),
    Make(MakeError),
    Io { attempted: &'static str, path: PathBuf, source: io::Error },
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(reason) => f.write_str(reason),
            Self::Make(error) => error.fmt(f),
            Self::Io { attempted, path, source } => {
                write!(f, "cannot {attempted} {}: {source}", path.display())
            }
        }
    }
}

impl From<MakeError> for TlsFailure {
    fn from(error: MakeError) -> Self {
        Self::Make(error)
    }
}

/// A folder of certificates and keys.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// The folder at `path`, which is made if it is not there.
    pub(super) fn open(path: &Path) -> Result<Self, TlsFailure> {
        let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
        made.map_err(|source| TlsFailure::Io { attempted: "make", path: path.to_path_buf(), source })?;
        Ok(Self(path.to_path_buf()))
    }

    /// The certificate with this name.
    pub(super) fn cert(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.pem"))
    }

    /// The key with this name.
    pub(super) fn key(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.key"))
    }

    /// The authority with this name, made if it is not there.
    pub(super) fn authority(&self, name: &str) -> Result<Authority, TlsFailure> {
        if self.cert(name).exists() {
            return Ok(Authority::load(&read(&self.cert(name))?, &read(&self.key(name))?)?);
        }
        let made = Authority::new(&format!("kvorum {name}"))?;
        write(&self.key(name), KEY_MODE, made.key())?;
        write(&self.cert(name), CERT_MODE, made.cert())?;
        Ok(made)
    }

    /// Makes the certificate of the node at `url` unless it is there, or always if it `is_renewed`. Returns its name, and
    /// whether it was made.
    pub(super) fn node(
        &self,
        of: &Authority,
        url: &str,
        is_renewed: bool,
    ) -> Result<(String, bool), TlsFailure> {
        let parsed = Named::of_url(url);
        let (_, at) = parsed
            .ok_or_else(|| TlsFailure::Usage(format!("{url:?} is not a URL such as https://node-a:8080")))?;
        let name = format!("node-{}", at.to_string().replace([':', '[', ']'], "-"));
        if self.cert(&name).exists() && !is_renewed {
            return Ok((name, false));
        }
        let mut hosts = vec![at.host()];
        if at.is_loopback() {
            hosts.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
            hosts.sort();
            hosts.dedup();
        }
        self.put(&name, &of.issue(&at.host(), &hosts, Use::Node)?)?;
        Ok((name, true))
    }

    /// Makes the certificate of the client `name` unless it is there. Returns whether it was made.
    pub(super) fn client(&self, of: &Authority, file: &str, name: &str) -> Result<bool, TlsFailure> {
        if self.cert(file).exists() {
            return Ok(false);
        }
        self.put(file, &of.issue(name, &[name.to_owned()], Use::Client)?)?;
        Ok(true)
    }

    fn put(&self, name: &str, made: &Made) -> Result<(), TlsFailure> {
        // A node that reads between the two finds that they do not belong together, and looks again.
        write(&self.key(name), KEY_MODE, &made.key)?;
        write(&self.cert(name), CERT_MODE, &made.cert)
    }
}

/// The name of the authority of nodes.
pub(super) const NODES: &str = "nodes-ca";
/// The name of the authority of clients.
pub(super) const CLIENTS: &str = "clients-ca";

fn init(matches: &ArgMatches) -> Result<String, TlsFailure> {
    let folder = folder_of(matches)?;
    let (nodes, clients) = (folder.authority(NODES)?, folder.authority(CLIENTS)?);
    let mut text = String::new();
    let urls = matches.get_many::<String>("url").into_iter().flatten();
    for url in urls {
        let (name, is_made) = folder.node(&nodes, url, matches.get_flag("renew"))?;
        let did = if is_made { "made" } else { "there already" };
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{url}: {} ({did})", folder.cert(&name).display());
    }
    folder.client(&clients, ADMIN, ADMIN)?;
    let path = |path: PathBuf| path.display().to_string();
    let _ = write!(
        text,
        "\nGive each node its own certificate and key, and both authorities' certificates:\n  kvorum serve … --tls-cert \
         NODE.pem --tls-key NODE.key --peer-ca {nodes} --tls-client-ca {clients}\nGive the operator's certificate rights, and \
         use it:\n  kvorum token create TOKENS.toml --id admin --certificate {ADMIN} --allow read,write,delete,scan --allow \
         admin,metrics\n  kvorum status --url https://… --ca {nodes} --cert {cert} --key {key}\nKeep {nodes_key} and {clients_key} \
         off the nodes: who has them makes nodes and clients.\n",
        nodes = path(folder.cert(NODES)),
        clients = path(folder.cert(CLIENTS)),
        cert = path(folder.cert(ADMIN)),
        key = path(folder.key(ADMIN)),
        nodes_key = path(folder.key(NODES)),
        clients_key = path(folder.key(CLIENTS)),
    );
    Ok(text)
}

fn client(matches: &ArgMatches) -> Result<String, TlsFailure> {
    let folder = folder_of(matches)?;
    let name = text_of(matches, "name").unwrap_or_default();
    let file: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let file = format!("client-{file}");
    if !folder.client(&folder.authority(CLIENTS)?, &file, name)? {
        return Err(TlsFailure::Usage(format!(
            "{} is there already: remove it to make another",
            folder.cert(&file).display()
        )));
    }
    Ok(format!("{}\n{}\n", folder.cert(&file).display(), folder.key(&file).display()))
}

fn folder_of(matches: &ArgMatches) -> Result<Folder, TlsFailure> {
    Folder::open(Path::new(text_of(matches, "dir").unwrap_or("./tls")))
}

fn read(path: &Path) -> Result<String, TlsFailure> {
    let failed = |source| TlsFailure::Io { attempted: "read", path: path.to_path_buf(), source };
    let mut text = String::new();
    let file = OpenOptions::new().read(true).open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Replaces the file as a whole: it never has half a key.
pub(super) fn write(path: &Path, mode: u32, text: &str) -> Result<(), TlsFailure> {
    let failed = |source| TlsFailure::Io { attempted: "write", path: path.to_path_buf(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // One of an earlier run that was cut off would keep its mode.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)
}
