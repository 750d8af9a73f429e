//! `kvorum token create|list|revoke`: changes the file of tokens that nodes watch. It needs no running node.

use super::{FAILED, USAGE, complain, flag, print, text_of};
use clap::{Arg, ArgAction, ArgMatches, Command};
use kvorum_core::{Grant, Right, UnixMillis};
use kvorum_server::clock::{Clock as _, SystemClock, secret_bytes};
use kvorum_server::http::target::decode;
use kvorum_server::security::file::{self, FileError};
use kvorum_server::security::limit::{Limit, PER_SECOND_MAX};
use kvorum_server::security::table::{TableError, TokenEntry, certificate_name, instant_text};
use kvorum_server::security::token::{SecretHash, id_of, is_id, secret_of};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// The longest time that a token can be made for, in milliseconds: 100 years of 365 days.
const EXPIRES_MILLIS_MAX: u64 = 36_500 * 24 * 60 * 60 * 1000;

pub(super) fn command() -> Command {
    let on_file = |command: Command| {
        command.arg(Arg::new("file").value_name("FILE").required(true).help("The nodes' --token-file"))
    };
    Command::new("token")
        .about("Creates, lists and revokes clients' tokens")
        .long_about(
            "Creates, lists and revokes clients' tokens in a file. Nodes that run with --token-file FILE take a change within \
             5 s. Give every node the same file.",
        )
        .subcommand_required(true)
        .subcommand(
            on_file(Command::new("create").about("Makes a token and prints it, once"))
                .arg(
                    flag(
                        "allow",
                        "RIGHTS[:PREFIX]",
                        "What it allows: read, write, delete, scan, process (for all keys, or those that begin with PREFIX), \
                         admin, metrics; such as read,write:user/ or metrics. %XX in PREFIX is a byte. May be given \
                         several times",
                    )
                    .action(ArgAction::Append)
                    .required(true),
                )
                .arg(flag("id", "ID", "Its id, which logs and metrics show [default: a random one]"))
                .arg(flag("name", "TEXT", "What it is for, for people"))
                .arg(flag(
                    "certificate",
                    "NAME",
                    "Let clients whose certificate has this name be the token, without a secret (nodes: --tls-client-ca)",
                ))
                .arg(flag("requests-per-second", "N", "Refuse more requests a second on each node [default: no limit]"))
                .arg(flag(
                    "bytes-per-second",
                    "N",
                    "Refuse requests while more bytes a second were received and sent on each node [default: no limit]",
                ))
                .arg(flag("expires-in", "DURATION", "How long it is valid, such as 12h or 90d [default: forever]")),
        )
        .subcommand(on_file(Command::new("list").about("Prints the tokens, without their secrets")))
        .subcommand(
            on_file(Command::new("revoke").about("Makes nodes refuse a token from now on"))
                .arg(Arg::new("id").value_name("ID").required(true).help("The token's id")),
        )
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let now = SystemClock::new().wall();
    let done = match matches.subcommand() {
        Some(("create", matches)) => create(matches, now),
        Some(("list", matches)) => list(matches, now),
        Some(("revoke", matches)) => revoke(matches, now),
        _ => Err(TokenError::Usage("one of create, list and revoke is needed".to_owned())),
    };
    match done {
        Ok(text) => print(text),
        Err(TokenError::Usage(reason)) => complain(reason, USAGE),
        Err(TokenError::File(error)) => complain(error, FAILED),
        Err(TokenError::Random(error)) => {
            complain(format!("the operating system provides no random bytes: {error}"), FAILED)
        }
    }
}

enum TokenError {
    Usage(String),
    File(FileError),
    Random(std::io::Error),
}

impl From<FileError> for TokenError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

fn path_of(matches: &ArgMatches) -> &Path {
    Path::new(text_of(matches, "file").unwrap_or_default())
}

/// Adds a token to the file. Returns its text, the only place where its secret is.
fn create(matches: &ArgMatches, now: UnixMillis) -> Result<String, TokenError> {
    let allowed = matches.get_many::<String>("allow").into_iter().flatten();
    let grants = allowed.map(|text| grant_of(text)).collect::<Result<Vec<_>, _>>()?;
    let id = match text_of(matches, "id") {
        Some(id) if is_id(id) => id.to_owned(),
        Some(id) => {
            return Err(TokenError::Usage(format!(
                "--id {id:?}: an id has 1 to 64 letters, digits, - and _"
            )));
        }
        None => id_of(secret_bytes().map_err(TokenError::Random)?),
    };
    let not_after = text_of(matches, "expires-in").map(|text| expiry_of(text, now)).transpose()?;
    let secret = secret_of(secret_bytes().map_err(TokenError::Random)?);
    let certificate = text_of(matches, "certificate").map(certificate_name).transpose();
    let certificate = certificate.map_err(|reason| TokenError::Usage(format!("--certificate: {reason}")))?;
    let said = match &certificate {
        Some(name) => format!("{id}: clients whose certificate names {name}\n"),
        None => format!("{id}.{secret}\n"),
    };
    let entry = TokenEntry {
        id: id.as_str().into(),
        name: text_of(matches, "name").unwrap_or_default().to_owned(),
        secret: certificate.is_none().then(|| SecretHash::of(&secret)),
        certificate,
        created: Some(now),
        not_after,
        revoked: None,
        grants,
        limit: limit_of(matches)?,
        meter: Arc::default(),
    };
    file::update(path_of(matches), |table| {
        table.add(entry).map_err(|error| match error {
            TableError::Twice { id } => TokenError::Usage(format!(
                "there is a token with the id {id:?} already: ids are not used again"
            )),
            error => TokenError::Usage(error.to_string()),
        })
    })?;
    Ok(said)
}

/// Adds the operator's token to the file at `path`, which allows everything and also holds for the certificate `name`.
/// Returns the token's text.
pub(super) fn make_operator(path: &Path, name: &str) -> Result<String, String> {
    let random = |error: std::io::Error| format!("the operating system provides no random bytes: {error}");
    let now = SystemClock::new().wall();
    let id = format!("operator-{}", id_of(secret_bytes().map_err(random)?));
    let secret = secret_of(secret_bytes().map_err(random)?);
    let grants = ["read,write,delete,scan", "admin,metrics"].map(grant_of);
    let grants = grants.into_iter().collect::<Result<Vec<_>, _>>().map_err(|_| "no such right".to_owned())?;
    let entry = TokenEntry {
        id: id.as_str().into(),
        name: "the operator".to_owned(),
        secret: Some(SecretHash::of(&secret)),
        certificate: Some(name.to_owned()),
        created: Some(now),
        not_after: None,
        revoked: None,
        grants,
        limit: Limit::default(),
        meter: Arc::default(),
    };
    file::update(path, |table| {
        // One that was made before and whose text is lost.
        let former: Vec<Arc<str>> = table.tokens().iter().map(|token| Arc::clone(&token.id)).collect();
        for id in former.iter().filter(|id| id.starts_with("operator-")) {
            table.revoke(id, now);
        }
        table.add(entry).map_err(|error| FileError::Table { path: path.to_path_buf(), error })
    })
    .map_err(|error| error.to_string())?;
    Ok(format!("{id}.{secret}\n"))
}

fn limit_of(matches: &ArgMatches) -> Result<Limit, TokenError> {
    let rate = |name: &str| {
        let Some(text) = text_of(matches, name) else { return Ok(None) };
        let rate = text.parse().ok().filter(|rate| (1..=PER_SECOND_MAX).contains(rate));
        rate.map(Some).ok_or_else(|| {
            TokenError::Usage(format!("--{name} {text:?}: a number from 1 to {PER_SECOND_MAX} is needed"))
        })
    };
    Ok(Limit { requests: rate("requests-per-second")?, bytes: rate("bytes-per-second")? })
}

fn grant_of(text: &str) -> Result<Grant, TokenError> {
    let usage = |reason: String| TokenError::Usage(format!("--allow {text:?}: {reason}"));
    let (names, prefix) = text.split_once(':').unwrap_or((text, ""));
    let rights = names.split(',').map(|name| name.trim().parse::<Right>());
    let rights = rights.collect::<Result<Vec<_>, _>>().map_err(|error| usage(error.to_string()))?;
    let prefix = decode(prefix).ok_or("% in PREFIX must be followed by two hexadecimal digits");
    let prefix = prefix.map_err(|reason| usage(reason.to_owned()))?;
    Grant::new(prefix, &rights, None).map_err(|error| usage(error.to_string()))
}

fn expiry_of(text: &str, now: UnixMillis) -> Result<UnixMillis, TokenError> {
    let millis = kvorum_units::duration(text)
        .and_then(kvorum_units::millis_up)
        .filter(|millis| (1..=EXPIRES_MILLIS_MAX).contains(millis));
    let usage = || {
        let allowed = "a duration such as 12h or 90d is needed, at most 36500d (100 years)";
        TokenError::Usage(format!("--expires-in {text:?}: {allowed}"))
    };
    millis.map(|millis| now.saturating_add(millis)).ok_or_else(usage)
}

/// A line for each token: id, state, end, rights, name.
fn list(matches: &ArgMatches, now: UnixMillis) -> Result<String, TokenError> {
    let table = file::load(path_of(matches))?;
    let mut text = String::new();
    for token in table.tokens() {
        let state = match (token.is_revoked(now), token.is_expired(now)) {
            (true, _) => "revoked",
            (false, true) => "expired",
            (false, false) => "valid",
        };
        let end = token.not_after.map_or_else(|| "forever".to_owned(), instant_text);
        let grants: Vec<String> = token.grants.iter().map(text_of_grant).collect();
        let mut grants = grants.join(" ");
        for (limit, what) in [(token.limit.requests, "requests"), (token.limit.bytes, "bytes")] {
            if let Some(limit) = limit {
                let _ = write!(grants, " {limit} {what}/s");
            }
        }
        if let Some(certificate) = &token.certificate {
            let _ = write!(grants, " certificate {certificate}");
        }
        let name: String = token.name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{}\t{state}\t{end}\t{}\t{name}", token.id, grants);
    }
    Ok(text)
}

/// A grant in the syntax of `--allow`, and its end if it has one.
fn text_of_grant(grant: &Grant) -> String {
    let rights: Vec<&str> = grant.rights().map(Right::name).collect();
    let mut text = rights.join(",");
    if !grant.prefix().is_empty() {
        text.push(':');
    }
    for byte in grant.prefix() {
        if byte.is_ascii_graphic() && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    grant.not_after().map_or(text.clone(), |last| format!("{text}(until {})", instant_text(last)))
}

fn revoke(matches: &ArgMatches, now: UnixMillis) -> Result<String, TokenError> {
    let id = text_of(matches, "id").unwrap_or_default();
    let path = path_of(matches);
    file::load(path)?;
    file::update(path, |table| {
        if table.revoke(id, now) {
            Ok(())
        } else {
            Err(TokenError::Usage(format!("there is no token with the id {id:?}")))
        }
    })?;
    Ok(format!("{id} is revoked: nodes that watch this file refuse it within 5 s\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `list` prints of a grant makes the same grant again.
    #[test]
    fn grants_are_written_as_they_are_read() {
        let check = |text: &str, expect: Option<&str>| match (grant_of(text), expect) {
            (Ok(grant), Some(expect)) => assert_eq!(text_of_grant(&grant), expect),
            (Err(TokenError::Usage(_)), None) => {}
            _ => panic!("{text}"),
        };
        check("read", Some("read"));
        check("write, read:user/", Some("read,write:user/"));
        check("scan:a:b%25%00%ff ", Some("scan:a:b%25%00%FF%20"));
        check("admin,metrics", Some("admin,metrics"));
        check("admin:a", None);
        check("fly", None);
        check("", None);
        check("read:%4", None);
    }
}
