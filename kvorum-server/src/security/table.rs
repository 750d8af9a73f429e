//! The table of tokens, and the file that it is read from.
//!
//! ```toml
//! [[token]]
//! id = "billing"
//! name = "the billing service"               # optional, for people
//! secret_sha256 = "ba7816bf…"                # SHA-256 of the secret's text, in hexadecimal
//! certificate = "billing.example"            # instead or as well: a name in the client's certificate
//! created = 2026-11-26T06:00:00Z             # optional
//! not_after = 2027-11-26T06:00:00Z           # optional
//! revoked = 2026-12-01T00:00:00Z             # optional: from then on it is refused
//! requests_per_second = 500                  # optional: a limit on each node
//! bytes_per_second = 10485760                # optional: a limit on each node, received and sent
//!
//! [[token.grant]]
//! prefix = "billing/"                        # or prefix_base64; absent for all keys
//! rights = ["read", "write"]
//! not_after = 2026-12-31T00:00:00Z           # optional
//!
//! [end]
//! tokens = 1                                 # how many there are
//! ```
//!
//! The last table makes a file that was cut off recognisable: without it, a beginning of the file could be valid and
//! would silently lack tokens.

use super::instant;
use super::limit::{Limit, Meter, PER_SECOND_MAX};
use super::token::{self, SecretHash};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use kvorum_core::{Grant, Right, Scope, UnixMillis, UnknownRight};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use toml::value::Datetime;

/// The largest file of tokens that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// The most tokens in a file.
pub const TOKENS_MAX: usize = 10_000;

/// What a node knows of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEntry {
    /// Its id.
    pub id: Arc<str>,
    /// What it is for, for people; may be empty.
    pub name: String,
    /// The hash of its secret; none if only a certificate proves it.
    pub secret: Option<SecretHash>,
    /// A subject alternative name: a client whose certificate has it is this token. A DNS name is in lower case.
    pub certificate: Option<String>,
    /// When it was made.
    pub created: Option<UnixMillis>,
    /// The last instant at which it is valid.
    pub not_after: Option<UnixMillis>,
    /// From when on it is refused.
    pub revoked: Option<UnixMillis>,
    /// What it allows.
    pub grants: Vec<Grant>,
    /// How much it allows.
    pub limit: Limit,
    /// How much of that was used on this node.
    pub meter: Arc<Meter>,
}

impl TokenEntry {
    /// Whether it is revoked at `now`.
    pub fn is_revoked(&self, now: UnixMillis) -> bool {
        self.revoked.is_some_and(|from| now >= from)
    }

    /// Whether its time is over at `now`.
    pub fn is_expired(&self, now: UnixMillis) -> bool {
        self.not_after.is_some_and(|last| now > last)
    }

    /// Whether one of its grants allows `right` on all of `scope` at `now`.
    pub fn allows(&self, right: Right, scope: Scope<'_>, now: UnixMillis) -> bool {
        self.grants.iter().any(|grant| grant.allows(right, scope, now))
    }
}

/// All tokens that a node knows, in the order of their file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenTable {
    tokens: Vec<TokenEntry>,
    places: HashMap<Arc<str>, usize>,
    certified: HashMap<String, usize>,
}

/// Why a text is not a table of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableError {
    /// It is not TOML of this form.
    Form {
        /// What the parser says.
        reason: String,
    },
    /// It ends before its end, or the count there is not right.
    Cut {
        /// How many tokens it has.
        found: usize,
        /// How many it says it has.
        announced: Option<usize>,
    },
    /// It has more than [`TOKENS_MAX`] tokens.
    TooMany {
        /// How many it has.
        found: usize,
    },
    /// Two tokens have one id.
    Twice {
        /// The id.
        id: String,
    },
    /// Two tokens have one name of a certificate.
    CertificateTwice {
        /// The name.
        name: String,
    },
    /// A token is not valid.
    Token {
        /// Its id.
        id: String,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form { reason } => write!(f, "it is not a file of tokens: {reason}"),
            Self::Cut { found, announced: None } => write!(
                f,
                "it seems cut off: it has {found} tokens and no [end] table; its last lines must be [end] and tokens = \
                 {found}"
            ),
            Self::Cut { found, announced: Some(announced) } => {
                write!(f, "it has {found} tokens, but its [end] table says tokens = {announced}")
            }
            Self::TooMany { found } => write!(f, "it has {found} tokens; at most {TOKENS_MAX} are allowed"),
            Self::Twice { id } => write!(f, "it has two tokens with the id {id:?}"),
            Self::CertificateTwice { name } => {
                write!(
                    f,
                    "it has two tokens for certificates of {name:?}: whose rights count would be a guess"
                )
            }
            Self::Token { id, reason } => write!(f, "token {id:?}: {reason}"),
        }
    }
}

impl std::error::Error for TableError {}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default, rename = "token")]
    tokens: Vec<TokenText>,
    end: Option<EndText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndText {
    tokens: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenText {
    id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Datetime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<Datetime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<Datetime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<u64>,
    #[serde(default, rename = "grant")]
    grants: Vec<GrantText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantText {
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_base64: Option<String>,
    rights: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<Datetime>,
}

impl TokenTable {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`TableError`] for a text that is not wholly valid. Nothing of it is used then.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        // The parser's first line names the place; the others draw it, which a log line cannot show.
        let form = |error: toml::de::Error| {
            let reason = error.to_string();
            let mut lines = reason.lines().map(str::trim);
            let (first, last) = (lines.next().unwrap_or_default(), lines.next_back().unwrap_or_default());
            TableError::Form { reason: format!("{first}: {last}") }
        };
        let FileText { tokens, end } = toml::from_str(text).map_err(form)?;
        let (found, announced) = (tokens.len(), end.map(|end| end.tokens));
        if announced != Some(found) {
            return Err(TableError::Cut { found, announced });
        }
        let mut table = Self::default();
        for token in tokens {
            let id = token.id.clone();
            let entry = entry_of(token).map_err(|reason| TableError::Token { id, reason })?;
            table.add(entry)?;
        }
        Ok(table)
    }

    /// The text of the file, which [`TokenTable::parse`] reads.
    ///
    /// # Errors
    /// When TOML cannot express it, which no table that was read or added can cause.
    pub fn render(&self) -> Result<String, TableError> {
        let tokens = self.tokens.iter().map(text_of).collect();
        let file = FileText { tokens, end: Some(EndText { tokens: self.tokens.len() }) };
        let text = toml::to_string(&file).map_err(|error| TableError::Form { reason: error.to_string() })?;
        Ok(format!("# Tokens of kvorum, written by \"kvorum token\". Comments are not kept.\n\n{text}"))
    }

    /// Adds a token.
    ///
    /// # Errors
    /// [`TableError::Twice`] or [`TableError::TooMany`].
    pub fn add(&mut self, entry: TokenEntry) -> Result<(), TableError> {
        if self.tokens.len() >= TOKENS_MAX {
            return Err(TableError::TooMany { found: self.tokens.len() + 1 });
        }
        if self.places.contains_key(&entry.id) {
            return Err(TableError::Twice { id: entry.id.to_string() });
        }
        if let Some(name) = &entry.certificate {
            let known = self.certified(name);
            // A revoked token says who was refused, until another one is for that certificate.
            if known.is_some_and(|known| known.revoked.is_none()) && entry.revoked.is_none() {
                return Err(TableError::CertificateTwice { name: name.clone() });
            }
            if known.is_none_or(|known| known.revoked.is_some()) {
                self.certified.insert(name.clone(), self.tokens.len());
            }
        }
        self.places.insert(Arc::clone(&entry.id), self.tokens.len());
        self.tokens.push(entry);
        Ok(())
    }

    /// Revokes the token `id` from `now` on. Returns whether there is such a token; one that is revoked already stays as
    /// it is.
    pub fn revoke(&mut self, id: &str, now: UnixMillis) -> bool {
        let place = self.places.get(id).copied();
        let Some(entry) = place.and_then(|place| self.tokens.get_mut(place)) else { return false };
        entry.revoked = Some(entry.revoked.map_or(now, |from| from.min(now)));
        true
    }

    /// Takes over what the tokens have used so far from `before`, the table in force: a change of the file gives nobody a
    /// new allowance.
    pub fn go_on_from(&mut self, before: &Self) {
        for entry in &mut self.tokens {
            if let Some(known) = before.get(&entry.id) {
                entry.meter = Arc::clone(&known.meter);
            }
        }
    }

    /// The token `id`.
    pub fn get(&self, id: &str) -> Option<&TokenEntry> {
        self.tokens.get(*self.places.get(id)?)
    }

    /// The token of clients whose certificate has `name`.
    pub fn certified(&self, name: &str) -> Option<&TokenEntry> {
        self.tokens.get(*self.certified.get(name)?)
    }

    /// All tokens, in the order of their file.
    pub fn tokens(&self) -> &[TokenEntry] {
        &self.tokens
    }
}

fn entry_of(token: TokenText) -> Result<TokenEntry, String> {
    let TokenText {
        id,
        name,
        secret_sha256,
        certificate,
        created,
        not_after,
        revoked,
        requests_per_second,
        bytes_per_second,
        grants,
    } = token;
    if !token::is_id(&id) {
        return Err("an id has 1 to 64 letters, digits, - and _".to_owned());
    }
    let secret = secret_sha256
        .map(|text| SecretHash::parse(&text).ok_or("secret_sha256 must have 64 hexadecimal digits"));
    let secret = secret.transpose()?;
    let certificate = certificate.map(|name| certificate_name(&name)).transpose()?;
    if secret.is_none() && certificate.is_none() {
        return Err("secret_sha256 or certificate is needed: nothing else proves it".to_owned());
    }
    let grants = grants.into_iter().map(grant_of).collect::<Result<_, _>>()?;
    Ok(TokenEntry {
        id: id.into(),
        name,
        secret,
        certificate,
        created: instant_of("created", created)?,
        not_after: instant_of("not_after", not_after)?,
        revoked: instant_of("revoked", revoked)?,
        grants,
        limit: Limit {
            requests: rate_of("requests_per_second", requests_per_second)?,
            bytes: rate_of("bytes_per_second", bytes_per_second)?,
        },
        meter: Arc::default(),
    })
}

/// The longest name of a certificate, in bytes.
const CERTIFICATE_NAME_BYTES_MAX: usize = 512;

/// The name of a certificate as it is compared: a DNS name in lower case, anything else as it is.
///
/// # Errors
/// For a text that no certificate has.
pub fn certificate_name(text: &str) -> Result<String, String> {
    if !(1..=CERTIFICATE_NAME_BYTES_MAX).contains(&text.len())
        || !text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(format!(
            "a name of a certificate has 1 to {CERTIFICATE_NAME_BYTES_MAX} visible ASCII characters"
        ));
    }
    let is_dns = !text.contains([':', '@', '/']);
    Ok(if is_dns { text.to_ascii_lowercase() } else { text.to_owned() })
}

fn grant_of(grant: GrantText) -> Result<Grant, String> {
    let GrantText { prefix, prefix_base64, rights, not_after } = grant;
    let prefix = match (prefix, prefix_base64) {
        (Some(_), Some(_)) => return Err("prefix and prefix_base64 exclude each other".to_owned()),
        (Some(prefix), None) => Bytes::from(prefix),
        (None, Some(prefix)) => {
            Bytes::from(BASE64.decode(prefix).map_err(|_| "prefix_base64 is not base64".to_owned())?)
        }
        (None, None) => Bytes::new(),
    };
    let rights = rights.iter().map(|name| name.parse().map_err(|error: UnknownRight| error.to_string()));
    let rights: Vec<Right> = rights.collect::<Result<_, _>>()?;
    Grant::new(prefix, &rights, instant_of("not_after", not_after)?).map_err(|error| error.to_string())
}

fn rate_of(name: &str, rate: Option<u64>) -> Result<Option<u64>, String> {
    match rate {
        Some(rate) if !(1..=PER_SECOND_MAX).contains(&rate) => {
            Err(format!("{name} = {rate}: allowed are 1 to {PER_SECOND_MAX}"))
        }
        rate => Ok(rate),
    }
}

fn instant_of(name: &str, at: Option<Datetime>) -> Result<Option<UnixMillis>, String> {
    let Some(at) = at else { return Ok(None) };
    let bad =
        || format!("{name} = {at}: a date, a time and an offset are needed, such as 2027-01-31T12:00:00Z");
    instant::of(&at).map(Some).ok_or_else(bad)
}

fn text_of(entry: &TokenEntry) -> TokenText {
    let TokenEntry { id, name, secret, certificate, created, not_after, revoked, grants, limit, meter: _ } =
        entry;
    TokenText {
        id: id.to_string(),
        name: name.clone(),
        secret_sha256: secret.as_ref().map(ToString::to_string),
        certificate: certificate.clone(),
        created: created.and_then(instant::write),
        not_after: not_after.and_then(instant::write),
        revoked: revoked.and_then(instant::write),
        requests_per_second: limit.requests,
        bytes_per_second: limit.bytes,
        grants: grants.iter().map(text_of_grant).collect(),
    }
}

fn text_of_grant(grant: &Grant) -> GrantText {
    let (prefix, prefix_base64) = match std::str::from_utf8(grant.prefix()) {
        Ok("") => (None, None),
        Ok(prefix) => (Some(prefix.to_owned()), None),
        Err(_) => (None, Some(BASE64.encode(grant.prefix()))),
    };
    let rights = grant.rights().map(|right| right.name().to_owned()).collect();
    GrantText { prefix, prefix_base64, rights, not_after: grant.not_after().and_then(instant::write) }
}

/// `at` as the file and the lists write it.
pub fn instant_text(at: UnixMillis) -> String {
    instant::text(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TokenTable {
        let grant = |prefix: &'static [u8], rights: &[Right], not_after| {
            Grant::new(prefix, rights, not_after).unwrap()
        };
        let entry = |id: &str, grants| TokenEntry {
            id: id.into(),
            name: String::new(),
            secret: Some(SecretHash::of(id)),
            certificate: Some(format!("{id}.example")),
            created: Some(UnixMillis(5000)),
            not_after: None,
            revoked: None,
            grants,
            limit: Limit { requests: Some(5), bytes: None },
            meter: Arc::default(),
        };
        let mut table = TokenTable::default();
        let both = vec![
            grant(b"a/\"\n", &[Right::Read, Right::Scan], Some(UnixMillis(9000))),
            grant(b"\0\xff", &[Right::Delete], None),
        ];
        let named = TokenEntry { name: "для людей".to_owned(), ..entry("one", both) };
        table.add(named).unwrap();
        let ended = TokenEntry { not_after: Some(UnixMillis(7000)), ..entry("two", Vec::new()) };
        table.add(ended).unwrap();
        table.add(entry("three", vec![grant(b"", &[Right::Admin, Right::Metrics], None)])).unwrap();
        assert!(table.revoke("three", UnixMillis(8000)) && !table.revoke("four", UnixMillis(8000)));
        table
    }

    /// What is written is read again.
    #[test]
    fn table_survives_its_file() {
        let table = table();
        let text = table.render().unwrap();
        assert_eq!(TokenTable::parse(&text).unwrap(), table, "{text}");
        let empty = TokenTable::default();
        assert_eq!(TokenTable::parse(&empty.render().unwrap()).unwrap(), empty);
    }

    /// Goal: a half-written file is never taken for a whole one. Method: every beginning of a file, byte by byte, is
    /// refused, but for the one that lacks only the last line end.
    #[test]
    fn every_cut_file_is_refused() {
        let mut table = table();
        for number in 0..9 {
            let (id, certificate) = (format!("n{number}").into(), Some(format!("n{number}.example")));
            let entry = TokenEntry { id, certificate, ..table.tokens()[1].clone() };
            table.add(entry).unwrap();
        }
        let text = table.render().unwrap();
        assert!(text.ends_with("tokens = 12\n"), "{text}");
        for end in (0..text.len() - 1).filter(|end| text.is_char_boundary(*end)) {
            assert!(TokenTable::parse(&text[..end]).is_err(), "{}", &text[..end]);
        }
        assert_eq!(TokenTable::parse(text.trim_end()).unwrap(), table);
    }

    #[test]
    fn wrong_files_are_refused_with_a_reason() {
        let hash = SecretHash::of("x");
        let check = |inside: &str, reason: &str| {
            let text =
                format!("[[token]]\nid = \"a\"\nsecret_sha256 = \"{hash}\"\n{inside}\n[end]\ntokens = 1\n");
            let error = TokenTable::parse(&text).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains('\n'), "{inside}: {error}");
        };
        check("secret = \"x\"", "secret");
        check("not_after = 2026-01-01", "an offset");
        check("not_after = \"soon\"", "not a file of tokens");
        check("[[token.grant]]\nrights = []", "at least one right");
        check("[[token.grant]]\nrights = [\"fly\"]", "\"fly\" is not a right; there are read,");
        check("[[token.grant]]\nprefix = \"a\"\nrights = [\"admin\"]", "whole node");
        check("[[token.grant]]\nprefix = \"a\"\nprefix_base64 = \"YQ==\"\nrights = [\"read\"]", "exclude");
        check("[[token.grant]]\nprefix_base64 = \"!\"\nrights = [\"read\"]", "base64");
        check("[[token.grant]]\nprefx = \"a\"\nrights = [\"read\"]", "prefx");
        let parse = |text: &str| TokenTable::parse(text).unwrap_err();
        let twice = format!("[[token]]\nid = \"a\"\nsecret_sha256 = \"{hash}\"\n").repeat(2);
        assert_eq!(parse(&format!("{twice}[end]\ntokens = 2\n")), TableError::Twice { id: "a".to_owned() });
        assert_eq!(parse(&twice), TableError::Cut { found: 2, announced: None });
        let of =
            |id: &str, more: &str| format!("[[token]]\nid = \"{id}\"\ncertificate = \"X.example\"\n{more}");
        let revoked = "revoked = 2026-12-01T00:00:00Z\n";
        let end = "[end]\ntokens = 2\n";
        let two = TokenTable::parse(&format!("{}{}{end}", of("a", ""), of("b", ""))).unwrap_err();
        assert_eq!(two, TableError::CertificateTwice { name: "x.example".to_owned() });
        for (first, second, expect) in [(revoked, "", "b"), ("", revoked, "a"), (revoked, revoked, "b")] {
            let table = TokenTable::parse(&format!("{}{}{end}", of("a", first), of("b", second))).unwrap();
            assert_eq!(&*table.certified("x.example").unwrap().id, expect, "{first}{second}");
        }
        let none = TokenTable::parse("[[token]]\nid = \"a\"\n[end]\ntokens = 1\n").unwrap_err();
        assert!(none.to_string().contains("nothing else proves it"), "{none}");
        let id = "[[token]]\nid = \"a b\"\nsecret_sha256 = \"00\"\n[end]\ntokens = 1\n";
        assert!(matches!(parse(id), TableError::Token { id, .. } if id == "a b"));
        assert!(matches!(parse("\0"), TableError::Form { .. }));
    }

    /// A token holds until its end and until it is revoked, each instant included or not as the names say.
    #[test]
    fn tokens_end() {
        let table = table();
        let (two, three) = (table.get("two").unwrap(), table.get("three").unwrap());
        assert!(!two.is_expired(UnixMillis(7000)) && two.is_expired(UnixMillis(7001)));
        assert!(!three.is_revoked(UnixMillis(7999)) && three.is_revoked(UnixMillis(8000)));
        let one = table.get("one").unwrap();
        let scan = Scope::Range { start: b"a/\"\n", end: Some(b"a/\"\nz") };
        assert!(one.allows(Right::Scan, scan, UnixMillis(9000)));
        assert!(!one.allows(Right::Scan, scan, UnixMillis(9001)));
        assert!(!one.allows(Right::Delete, scan, UnixMillis(9000)));
    }
}
