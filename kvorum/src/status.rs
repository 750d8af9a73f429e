//! `kvorum status`: whether default requests succeed, a row per node, and the alarms with their remedies.

use super::client::{Failure, escaped, write_out};
use super::table::{headings, micros, rate, table};
use super::{FAILED, cluster};
use clap::ArgMatches;
use clap::parser::ValueSource;
use kvorum_client::Client;
use kvorum_server::verdict::{self, Known, NodeView, Seen, Verdict, bytes, span};
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// The help's line about exit codes.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 a default read and write of any key would succeed, 1 one of them would not, 2 no node answers or \
     wrong usage; with --node-only: 0 the node serves, 3 it does not or does not answer";
/// The exit code when a default request would fail.
const FAILING: u8 = 1;
/// The exit code when no node answers.
const NOBODY: u8 = 2;
/// Clears a terminal: the cursor at its corner, then everything below.
pub(super) const CLEAR: &str = "\u{1b}[H\u{1b}[J";
/// The time between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    if matches.get_flag("node-only") {
        return one_node(client, matches).await;
    }
    let watched = matches.value_source("watch") == Some(ValueSource::CommandLine);
    let every = matches.get_one::<u64>("watch").map_or(WATCH_EVERY, |seconds| Duration::from_secs(*seconds));
    loop {
        let urls = cluster::nodes(client, matches).await;
        let asked = cluster::ask(&urls, matches, false).await?;
        let seen: Vec<Seen> = asked.iter().map(cluster::Asked::seen).collect();
        let verdict = verdict::judge(&seen);
        let text = if matches.get_flag("json") {
            format!("{}\n", as_json(&asked, &verdict))
        } else {
            page(&seen, &verdict)
        };
        let clear = if watched && io::stdout().is_terminal() { CLEAR } else { "" };
        write_out(format!("{clear}{text}").as_bytes())?;
        if !watched {
            return Ok(code(&seen, &verdict));
        }
        tokio::time::sleep(every).await;
    }
}

fn code(seen: &[Seen], verdict: &Verdict) -> ExitCode {
    let is_answered = seen.iter().any(|node| matches!(node.known, Known::Status(_)));
    match (is_answered, verdict.reads && verdict.writes) {
        (false, _) => ExitCode::from(NOBODY),
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(FAILING),
    }
}

fn as_json(asked: &[cluster::Asked], verdict: &Verdict) -> serde_json::Value {
    let node = |asked: &cluster::Asked| {
        serde_json::json!({
            "url": asked.url,
            "status": asked.status.as_ref().ok(),
            "error": asked.status.as_ref().err(),
        })
    };
    serde_json::json!({
        "verdict": verdict.to_json(),
        "nodes": asked.iter().map(node).collect::<Vec<_>>(),
    })
}

/// The verdict, a row per node, and the alarms.
fn page(seen: &[Seen], verdict: &Verdict) -> String {
    let mut rows = vec![headings(&[
        "node",
        "state",
        "version",
        "up",
        "req/s",
        "p50",
        "p99",
        "cpu",
        "memory",
        "disk free",
        "clock",
        "waits for",
    ])];
    rows.extend(seen.iter().map(|node| row(node, seen)));
    let mut page = format!("{}\n\n{}\n", escaped(verdict.sentence.as_bytes()), table(&rows));
    for alarm in &verdict.alarms {
        let (sentence, remedy) = (escaped(alarm.sentence.as_bytes()), alarm.remedy);
        let _ = write!(
            page,
            "\n{} {}: {sentence}\n    {remedy}\n    docs/operating.md#{}\n",
            alarm.severity.name(),
            alarm.name,
            alarm.name
        );
    }
    page
}

fn row(shown: &Seen, seen: &[Seen]) -> Vec<String> {
    let none = || "-".to_owned();
    let view = match &shown.known {
        Known::Status(view) => view,
        Known::Up { .. } | Known::Unheard | Known::Silent { .. } => {
            return vec![shown.url.clone(), "down".to_owned()];
        }
    };
    let load = view.load.as_ref();
    vec![
        shown.url.clone(),
        view.serving.clone(),
        view.version.clone(),
        view.uptime_millis.map_or_else(none, span),
        load.map_or_else(none, |load| rate(load.requests)),
        micros(load.and_then(|load| load.p50_micros)),
        micros(load.and_then(|load| load.p99_micros)),
        load.and_then(|load| load.cpu).map_or_else(none, |cores| format!("{:.0} %", cores * 100.0)),
        view.resident.map_or_else(none, bytes),
        view.disk_free.map_or_else(none, bytes),
        clock_of(&shown.url, seen).map_or_else(none, |millis| format!("{millis:+} ms")),
        view.waits_for.clone(),
    ]
}

/// How far the clock of the node at `url` is ahead: the middle of what the others say.
fn clock_of(url: &str, seen: &[Seen]) -> Option<i64> {
    let views = seen.iter().filter_map(|node| match &node.known {
        Known::Status(view) => Some(view),
        _ => None,
    });
    let said = |view: &NodeView| view.peers.iter().find(|peer| peer.url == url)?.clock_offset_millis;
    let mut offsets: Vec<i64> = views.filter_map(|view| said(view)).collect();
    offsets.sort_unstable();
    // The median; of an even number, the middle one nearer to zero. So one of two others with a wrong clock accuses nobody.
    let (low, high) = (offsets.get(offsets.len().checked_sub(1)? / 2)?, offsets.get(offsets.len() / 2)?);
    Some(if low.unsigned_abs() <= high.unsigned_abs() { *low } else { *high })
}

/// One node's state, as health checks ask for it.
async fn one_node(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let status = client.status().await?;
    if matches.get_flag("json") {
        write_out(format!("{}\n", status.body.trim_end()).as_bytes())?;
    } else {
        write_out(format!("{}\n", status_page(&status.node, &status.body)).as_bytes())?;
    }
    let is_able = status.is_ready() && !(matches.get_flag("quorum") && lacks_quorum(&status.body));
    Ok(if is_able { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Whether a status says that a default request would not reach its quorum.
fn lacks_quorum(body: &str) -> bool {
    let status: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    status.get("serving").and_then(serde_json::Value::as_str) == Some("no-quorum")
}

/// The status as tables: the node's own facts, one per line, and the other nodes, one per row. A body that is not JSON
/// is shown unchanged.
fn status_page(node: &str, body: &str) -> String {
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::from_str(body) else {
        return body.trim_end().to_owned();
    };
    let peers = fields.remove("peers");
    let mut rows = vec![vec!["asked".to_owned(), node.to_owned()]];
    for (name, value) in fields {
        match value {
            serde_json::Value::Object(inner) => {
                let inner = inner.into_iter().filter(|(_, value)| !value.is_null());
                rows.extend(inner.map(|(field, value)| vec![format!("{name} {field}"), plain(&value)]));
            }
            serde_json::Value::Null => {}
            value => rows.push(vec![name, plain(&value)]),
        }
    }
    let mut page = table(&rows);
    if let Some(serde_json::Value::Array(peers)) = peers.filter(|peers| peers != &serde_json::json!([])) {
        page.push_str("\n\n");
        page.push_str(&table(&peer_rows(&peers)));
    }
    page
}

/// The other nodes as rows, after a row of headings.
fn peer_rows(peers: &[serde_json::Value]) -> Vec<Vec<String>> {
    const COLUMNS: [(&str, &str); 9] = [
        ("peer", "/url"),
        ("state", "/state"),
        ("votes", "/votes"),
        ("p95 us", "/latency_us_p95"),
        ("in flight", "/in_flight"),
        ("failures", "/failures"),
        ("hints", "/hints/waiting"),
        ("clock ms", "/clock_offset_ms"),
        ("why", "/reason"),
    ];
    let headings = COLUMNS.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let row = |peer: &serde_json::Value| {
        let cell =
            |path: &str| peer.pointer(path).filter(|value| !value.is_null()).map(plain).unwrap_or_default();
        COLUMNS.iter().map(|(_, path)| cell(path)).collect()
    };
    std::iter::once(headings).chain(peers.iter().map(row)).collect()
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(url: &str, peers: &serde_json::Value) -> Seen {
        let status = serde_json::json!({
            "serving": "ok", "version": "1", "peers": peers, "uptime_ms": 61_000, "quorum": {"ack": 2, "from": 3},
            "store": {"state": "ok", "votes": "yes"},
            "load": {"requests_per_second": 1234.5, "latency_us_p50": 250, "latency_us_p99": 1500, "cpu_cores": 0.5},
            "waits_for": "x\u{1b}[31m\n",
        });
        Seen::answered(url, NodeView::of(&status).unwrap())
    }

    /// A row has the node's figures, and nothing of a node's texts reaches the terminal unescaped.
    #[test]
    fn pages_are_tables_without_control_characters() {
        let silent = Seen {
            url: "http://b\u{7}:1".to_owned(),
            known: Known::Silent { reason: "\u{9b}1m".to_owned() },
        };
        let seen = [node("http://a:1", &serde_json::json!([])), silent];
        let page = page(&seen, &verdict::judge(&seen));
        assert!(page.starts_with("1 of 2 nodes up, "), "{page}");
        assert!(
            page.contains("http://a:1       ok     1        61 s  1234   250 us  1.5 ms  50 %"),
            "{page}"
        );
        assert!(page.contains("critical node-down: http://b\\u{7}:1 does not answer: \\u{9b}1m"), "{page}");
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
    }

    /// A clock is judged by the middle of what the others say.
    #[test]
    fn clocks_are_the_middle_of_what_others_say() {
        let said = |own: &str, other: &str, offset: i64| {
            node(own, &serde_json::json!([{"url": other, "clock_offset_ms": offset}]))
        };
        let seen =
            [said("a", "c", 30_000), said("b", "c", 29_990), said("c", "a", -30_000), said("b", "a", 3)];
        assert_eq!(
            [clock_of("c", &seen), clock_of("a", &seen), clock_of("b", &seen)],
            [Some(29_990), Some(3), None]
        );
    }
}
