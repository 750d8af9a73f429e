//! The client's commands: `get`, `put`, `delete`, `incr`, `batch`, `scan`, `explain`, `status`; `repair` is in
//! [`super::repair`].
//!
//! Values go unchanged from standard input or a file to standard output; all messages go to standard error.

use super::{FAILED, NOT_FOUND, complain, complain_of, flag, text_of};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use kvorum_client::ClientTls;
use kvorum_client::{
    AddOptions, Builder, Client, Condition, DeleteOptions, Entry, Error, PutOptions, ReadOptions, Replicas,
    ScanOptions, Scope,
};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// HTTP dates end with the year 9999: their years have four digits.
const DATES_END: Duration = Duration::from_hours(70_389_528);
/// The longest TTL, in milliseconds: 100 years of 365 days.
const TTL_MILLIS_MAX: u64 = 36_500 * 24 * 60 * 60 * 1000;

/// The node's URL, unless `--url` or `KVORUM_URL` names another.
pub(super) const DEFAULT_URL: &str = "http://127.0.0.1:8080";

fn key(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name("KEY").help(help).value_parser(value_parser!(OsString))
}

fn replicas() -> Arg {
    flag("replicas", "ACK/FROM", "How many of how many replicas must confirm, such as 2/3")
}

pub(super) fn commands() -> Vec<Command> {
    let mut commands = of_one_key();
    commands.extend(of_many_keys());
    commands
}

fn of_one_key() -> Vec<Command> {
    vec![
        on_node(Command::new("get").about("Writes a key's value to standard output"))
            .arg(key("key", "The key").required(true))
            .arg(replicas())
            .arg(
                flag("output", "FILE", "Writes the value to a file instead")
                    .short('o')
                    .value_parser(value_parser!(OsString)),
            )
            .arg(switch("show", "Prints version, expiry and replicas to standard error")),
        on_node(Command::new("put").about("Stores a value: an argument, a file, or standard input"))
            .arg(key("key", "The key").required(true))
            .arg(
                Arg::new("value")
                    .value_name("VALUE")
                    .help("The value; without it, --file or standard input")
                    .value_parser(value_parser!(OsString)),
            )
            .arg(
                flag("file", "FILE", "Stores a file's bytes")
                    .short('f')
                    .conflicts_with("value")
                    .value_parser(value_parser!(OsString)),
            )
            .arg(flag(
                "ttl",
                "DURATION",
                "How long the value lives: 500ms, 30s, 15m, 12h or 7d, or seconds (5, 2.5); at most 36500d (100 years)",
            ))
            .arg(replicas())
            .arg(if_match())
            .arg(switch("if-absent", "Only if there is no value").conflicts_with("if-match")),
        on_node(Command::new("delete").about("Deletes a key"))
            .arg(key("key", "The key").required(true))
            .arg(replicas())
            .arg(if_match()),
        on_node(Command::new("incr").about("Adds to the number that is a key's value, and prints the new number"))
            .arg(key("key", "The key; without a value it counts as 0").required(true))
            .arg(
                Arg::new("addend")
                    .value_name("N")
                    .help("The number to add [default: 1]")
                    .allow_negative_numbers(true)
                    .value_parser(value_parser!(i64)),
            )
            .arg(replicas()),
    ]
}

fn of_many_keys() -> Vec<Command> {
    vec![
        on_node(
            Command::new("batch").about(
                "Carries out operations from standard input, one JSON object a line, and prints an answer a line",
            ),
        ),
        on_node(Command::new("scan").about("Prints the records of a range, KEY tab VALUE a line"))
            .arg(key("start", "The first key").required(true))
            .arg(key("end", "End of the range: the first key after it"))
            .arg(flag("limit", "N", "Records at most").value_parser(value_parser!(u64).range(1..)))
            .arg(switch("local", "Only the records that the node itself stores"))
            .arg(switch("keys", "Only keys, without values"))
            .arg(switch("json", "One JSON object a line")),
        on_node(Command::new("explain").about("Prints what every node holds of a key"))
            .arg(key("key", "The key").required(true))
            .arg(switch("json", "As JSON")),
        on_node(Command::new("repair").about("Compares and repairs nodes now, and waits until it is done"))
            .arg(flag(
                "node",
                "URL",
                "Only this node; without it, every node of the cluster, one after the other",
            ))
            .arg(flag("partition", "P", "Only this partition").value_parser(value_parser!(u16)))
            .arg(
                switch(
                    "drop-unbelievable",
                    "Drop records from the future first (further ahead of a node's clock than --clock-offset-limit); their \
                     values are lost",
                )
                .conflicts_with("partition"),
            ),
        super::membership::command(),
        on_node(
            Command::new("status")
                .about("Says whether default requests succeed, and shows all nodes and alarms")
                .after_help(super::status::EXIT_CODES),
        )
        .arg(switch("json", "As JSON"))
        .arg(watch("watch", "Again every SECONDS, until interrupted [default: 2]"))
        .arg(
            switch("node-only", "Ask one node and show its state alone, as health checks do; exit code 3 when it cannot serve")
                .conflicts_with("watch"),
        )
        .arg(
            switch("quorum", "Fail also while a default request through the node would not find its quorum")
                .requires("node-only"),
        ),
        on_node(
            Command::new("top")
                .about("Shows rates of all nodes, the hottest partitions and the slowest peers, again and again")
                .after_help("Exit codes: 0 done, 2 no node answers or wrong usage"),
        )
        .arg(watch("interval", "Time between two looks [default: 5]"))
        .arg(switch("once", "Once, without clearing the screen, for scripts"))
        .arg(switch("json", "One JSON object a look")),
    ]
}

/// Adds the flags that [`connect`] reads.
pub(super) fn on_node(command: Command) -> Command {
    command
        .arg(flag("url", "URL,…", format!("Nodes to ask [env: KVORUM_URL] [default: {DEFAULT_URL}]")))
        .arg(
            flag("timeout", "SECONDS", "How long to try [default: 5]")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .args(access_flags())
}

fn if_match() -> Arg {
    let help = "Only if the value has this version, or with * if there is a value; exit code 4 where it does not hold";
    flag("if-match", "VERSION", help)
}

/// The condition that the flags of a write name.
fn condition_of(matches: &ArgMatches) -> Option<Condition> {
    match text_of(matches, "if-match") {
        Some("*") => Some(Condition::Present),
        // With or without the quotes of an ETag.
        Some(version) => Some(Condition::Version(version.trim_matches('"').to_owned().into())),
        None => {
            let is_absent = matches!(matches.try_get_one::<bool>("if-absent"), Ok(Some(true)));
            is_absent.then_some(Condition::Absent)
        }
    }
}

fn watch(name: &'static str, help: &'static str) -> Arg {
    flag(name, "SECONDS", help).num_args(0..=1).value_parser(value_parser!(u64).range(1..=86_400))
}

pub(super) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

pub(super) fn run(name: &str, matches: &ArgMatches) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(format!("cannot start: {error}"), FAILED),
    };
    // `cluster` has its flags at the word behind it.
    let (word, matches) = matches.subcommand().unwrap_or(("", matches));
    let done = runtime.block_on(async {
        if name == "cluster" {
            return super::membership::run(word, matches).await;
        }
        let client = connect(matches)?;
        match name {
            "get" => get(&client, matches).await,
            "put" => put(&client, matches).await,
            "delete" => delete(&client, matches).await,
            "incr" => incr(&client, matches).await,
            "batch" => batch(&client).await,
            "scan" => scan(&client, matches).await,
            "explain" => explain(&client, matches).await,
            "repair" => Box::pin(super::repair::run(&client, matches)).await,
            "status" => super::status::run(&client, matches).await,
            "top" => super::top::run(&client, matches).await,
            _ => Err(Failure::Usage(format!("no such command: {name}"))),
        }
    });
    // A blocked read of standard input must not delay the exit.
    runtime.shutdown_background();
    done.unwrap_or_else(complain_of)
}

pub(super) enum Failure {
    Usage(String),
    Failed(String),
    /// The condition of a write did not hold.
    ConditionFailed(String),
    /// The reader of the output has closed it, as `head` does: not a failure, and no message.
    ReaderGone,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            error if error.is_condition_failed() => Self::ConditionFailed(error.to_string()),
            Error::InvalidConfig { .. } | Error::InvalidRequest { .. } | Error::Refused { .. } => {
                Self::Usage(error.to_string())
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if kvorum_output::is_reader_gone(&error) { Self::ReaderGone } else { Self::Failed(error.to_string()) }
    }
}

/// The flags that [`with_access`] reads.
pub(super) fn access_flags() -> [Arg; 4] {
    [
        flag(
            "token-file",
            "FILE",
            "File with the token to send, ID.SECRET [env: KVORUM_TOKEN, the token itself]",
        ),
        flag(
            "ca",
            "FILE",
            "PEM file with the authorities of the nodes' certificates, for https [env: KVORUM_CA]",
        ),
        flag("cert", "FILE", "PEM file with the certificate to show to nodes [env: KVORUM_CERT]"),
        // Commands have a KEY of their own.
        flag("key", "FILE", "PEM file with its key [env: KVORUM_KEY]").id("cert-key"),
    ]
}

/// Gives the client what it shows to nodes, and whom it believes: from the files that flags name, or from the environment.
pub(super) fn with_access(builder: Builder, matches: &ArgMatches) -> Result<Builder, Failure> {
    let builder = with_token(builder, matches)?;
    // An empty variable is how scripts unset one.
    let path = |flag: &str, variable: &str| {
        let variable = || std::env::var(variable).ok().filter(|path| !path.is_empty());
        text_of(matches, flag).map(str::to_owned).or_else(variable).map(PathBuf::from)
    };
    let identity = match (path("cert", "KVORUM_CERT"), path("cert-key", "KVORUM_KEY")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(Failure::Usage("--cert and --key belong together".to_owned())),
    };
    let Some(ca) = path("ca", "KVORUM_CA") else {
        return match identity {
            Some(_) => Err(Failure::Usage("--cert needs --ca, the authorities of the nodes".to_owned())),
            None => Ok(builder),
        };
    };
    let identity = identity.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
    let tls = ClientTls::load(&ca, identity).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(builder.tls(tls))
}

fn with_token(builder: Builder, matches: &ArgMatches) -> Result<Builder, Failure> {
    let token = match text_of(matches, "token-file") {
        #[expect(clippy::disallowed_methods, reason = "the user names this file")]
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("cannot read the token in {path}: {error}")))?,
        ),
        // An empty variable is how scripts unset one.
        None => std::env::var("KVORUM_TOKEN").ok().filter(|token| !token.is_empty()),
    };
    Ok(match token {
        Some(token) => builder.token(token),
        None => builder,
    })
}

pub(super) fn connect(matches: &ArgMatches) -> Result<Client, Failure> {
    let urls = text_of(matches, "url").map(str::to_owned);
    let urls = urls.or_else(|| std::env::var("KVORUM_URL").ok()).unwrap_or_else(|| DEFAULT_URL.to_owned());
    Ok(builder_of(matches)?.nodes(urls.split(',').map(str::trim)).build()?)
}

/// A client without nodes yet, with the command's access and time limit.
pub(super) fn builder_of(matches: &ArgMatches) -> Result<Builder, Failure> {
    let seconds = matches.get_one::<u64>("timeout").copied().unwrap_or(5);
    let builder = Client::builder().timeout(Duration::from_secs(seconds));
    // For one operation, a request for the topology costs more than it saves.
    with_access(builder.answer_bytes_max(usize::MAX).routing(false), matches)
}

fn key_of(matches: &ArgMatches, name: &str) -> Option<Vec<u8>> {
    matches.get_one::<OsString>(name).map(|key| key.as_bytes().to_vec())
}

fn required_key(matches: &ArgMatches, name: &str) -> Result<Vec<u8>, Failure> {
    key_of(matches, name).ok_or_else(|| Failure::Usage(format!("{name} is missing")))
}

fn replicas_of(matches: &ArgMatches) -> Result<Option<Replicas>, Failure> {
    let Some(text) = text_of(matches, "replicas") else { return Ok(None) };
    let pair = text
        .split_once('/')
        .and_then(|(ack, from)| Some(Replicas { ack: ack.parse().ok()?, from: from.parse().ok()? }));
    let bad = || Failure::Usage(format!("--replicas {text:?}: ACK/FROM is needed, such as 2/3"));
    pair.map(Some).ok_or_else(bad)
}

fn ttl_of(matches: &ArgMatches) -> Result<Option<Duration>, Failure> {
    let Some(text) = text_of(matches, "ttl") else { return Ok(None) };
    let bad = || {
        Failure::Usage(format!(
            "--ttl {text:?}: a duration such as 500ms, 30s, 15m, 12h or 7d is needed, or seconds such as 5 or 2.5; at \
             most 36500d"
        ))
    };
    let millis = kvorum_units::duration(text)
        .and_then(kvorum_units::millis_up)
        .filter(|millis| (1..=TTL_MILLIS_MAX).contains(millis));
    Ok(Some(Duration::from_millis(millis.ok_or_else(bad)?)))
}

async fn get(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let key = required_key(matches, "key")?;
    let options = ReadOptions { replicas: replicas_of(matches)?, timeout: None };
    let Some(entry) = client.get_with(key, options).await? else {
        return Ok(complain("not found", NOT_FOUND));
    };
    if matches.get_flag("show") {
        kvorum_output::tell(format!("version {}\n", entry.version));
        if let Some(at) = entry.expires {
            kvorum_output::tell(format!("expires {}\n", date_of(at)));
        }
        if let Some(replicas) = &entry.replicas {
            kvorum_output::tell(format!("replicas {replicas}\n"));
        }
    }
    match matches.get_one::<OsString>("output") {
        #[expect(clippy::disallowed_methods, reason = "the user asks for this file")]
        Some(path) => std::fs::write(path, &entry.value)?,
        None => write_out(&entry.value)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `at` as a date, whatever instant a node sent; there is no date after the year 9999.
fn date_of(at: SystemTime) -> String {
    let is_date = at < SystemTime::UNIX_EPOCH + DATES_END && at >= SystemTime::UNIX_EPOCH;
    if is_date { httpdate::fmt_http_date(at) } else { "after the year 9999".to_owned() }
}

async fn put(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let key = required_key(matches, "key")?;
    let options = PutOptions { ttl: ttl_of(matches)?, replicas: replicas_of(matches)?, timeout: None };
    let value = match (matches.get_one::<OsString>("value"), matches.get_one::<OsString>("file")) {
        (Some(value), _) => value.as_bytes().to_vec(),
        #[expect(clippy::disallowed_methods, reason = "the user asks for this file")]
        (None, Some(path)) => std::fs::read(path)
            .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))?,
        (None, None) => {
            let mut value = Vec::new();
            io::stdin().lock().read_to_end(&mut value)?;
            value
        }
    };
    let version = match condition_of(matches) {
        Some(condition) => client.put_if(key, value, &condition, options).await?,
        None => client.put_with(key, value, options).await?,
    };
    write_out(format!("version {version}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let options = DeleteOptions { replicas: replicas_of(matches)?, timeout: None };
    let key = required_key(matches, "key")?;
    match condition_of(matches) {
        Some(condition) => client.delete_if(key, &condition, options).await?,
        None => client.delete_with(key, options).await?,
    };
    Ok(ExitCode::SUCCESS)
}

async fn incr(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let options = AddOptions { replicas: replicas_of(matches)?, timeout: None };
    let addend = matches.get_one::<i64>("addend").copied().unwrap_or(1);
    let number = client.add(required_key(matches, "key")?, addend, options).await?;
    write_out(format!("{number}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn batch(client: &Client) -> Result<ExitCode, Failure> {
    let mut operations = Vec::new();
    io::stdin().lock().read_to_end(&mut operations)?;
    let mut answers = client.batch(operations).await?;
    while let Some(lines) = answers.next().await? {
        write_out(&lines)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn scan(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let start = required_key(matches, "start")?;
    let end = key_of(matches, "end");
    let scope = if matches.get_flag("local") { Scope::Local } else { Scope::Cluster };
    let options = ScanOptions { limit: matches.get_one::<u64>("limit").copied(), scope, timeout: None };
    let mut scan = client.scan(start, end.as_deref(), options).await?;
    let mut found = false;
    let is_terminal = io::stdout().is_terminal();
    while let Some(entry) = scan.next().await {
        found = true;
        let entry = entry?;
        let line = if matches.get_flag("json") {
            json_line(&entry)
        } else {
            let fields =
                if matches.get_flag("keys") { &[&entry.key][..] } else { &[&entry.key, &entry.value] };
            plain_line(fields, is_terminal)
        };
        write_out(&line)?;
    }
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::from(NOT_FOUND) })
}

/// Joins fields with tabs. On a terminal, control characters, backslashes and bytes that are not text are escaped:
/// stored bytes must not move the cursor, or look like another record.
fn plain_line(fields: &[&Bytes], is_terminal: bool) -> Vec<u8> {
    let mut line = Vec::new();
    for (nth, field) in fields.iter().enumerate() {
        if nth > 0 {
            line.push(b'\t');
        }
        if is_terminal {
            line.extend_from_slice(escaped(field).as_bytes());
        } else {
            line.extend_from_slice(field);
        }
    }
    line.push(b'\n');
    line
}

pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Not plain: controls, characters that change the text direction, and Unicode line ends.
            let is_plain = !c.is_control()
                && c != '\\'
                && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if is_plain {
                text.push(c);
            } else {
                text.extend(c.escape_default());
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn json_line(entry: &Entry) -> Vec<u8> {
    let mut object = serde_json::Map::new();
    for (name, raw) in [("key", &entry.key), ("value", &entry.value)] {
        match std::str::from_utf8(raw) {
            Ok(text) => object.insert(name.to_owned(), text.into()),
            Err(_) => object.insert(format!("{name}_base64"), BASE64.encode(raw).into()),
        };
    }
    object.insert("version".to_owned(), entry.version.to_string().into());
    let millis = |at: SystemTime| {
        at.duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|since| u64::try_from(since.as_millis()).ok())
    };
    if let Some(millis) = entry.expires.and_then(millis) {
        object.insert("expires".to_owned(), millis.into());
    }
    let mut line = serde_json::Value::Object(object).to_string().into_bytes();
    line.push(b'\n');
    line
}

async fn explain(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let text = client.explain(required_key(matches, "key")?, matches.get_flag("json")).await?;
    write_out(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output. A closed pipe ends the command like any failure.
pub(super) fn write_out(bytes: &[u8]) -> io::Result<()> {
    kvorum_output::print(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored bytes cannot control the terminal, and reach programs unchanged.
    #[test]
    fn scans_are_escaped_on_terminals() {
        let fields = [Bytes::from_static(b"k\x1b[2J\t\n\\"), Bytes::from("v\u{9b}31m\u{202e}\u{2028}ä\r\0")];
        let fields = [&fields[0], &fields[1]];
        assert_eq!(
            String::from_utf8(plain_line(&fields, true)).unwrap(),
            "k\\u{1b}[2J\\t\\n\\\\\tv\\u{9b}31m\\u{202e}\\u{2028}ä\\r\\u{0}\n"
        );
        assert_eq!(escaped(b"a\xff\xc3(\x7f"), "a\\xff\\xc3(\\u{7f}");
        assert_eq!(plain_line(&fields, false), [&fields[0][..], b"\t", fields[1], b"\n"].concat());
    }

    /// Every instant that a node may send is printed, even if HTTP has no date for it: `get --show` used to panic.
    #[test]
    fn every_expiry_is_printed() {
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        assert_eq!(date_of(at(253_402_300_799_999)), "Fri, 31 Dec 9999 23:59:59 GMT");
        for millis in [253_402_300_800_000, (1 << 48) - 1, (1 << 53) - 1] {
            assert_eq!(date_of(at(millis)), "after the year 9999");
        }
    }
}
