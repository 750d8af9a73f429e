//! `kvorum top`: the rates of all nodes, the hottest partitions and the slowest peers, drawn anew at each look.

use super::client::{Failure, escaped, write_out};
use super::cluster::{self, Asked};
use super::status::CLEAR;
use super::table::{headings, micros, rate, table};
use clap::ArgMatches;
use kvorum_client::Client;
use kvorum_server::verdict::{self, Known, NodeView, Seen};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// The time between two looks: nodes sample as often.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How many partitions and pairs of nodes are shown.
const ROWS_MAX: usize = 10;
/// The operations of a history, in the order of the columns.
const OPERATIONS: [&str; 5] = ["get", "put", "delete", "range", "other"];

pub(super) async fn run(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let every =
        matches.get_one::<u64>("interval").map_or(LOOK_EVERY, |seconds| Duration::from_secs(*seconds));
    let is_once = matches.get_flag("once");
    loop {
        let urls = cluster::nodes(client, matches).await;
        let asked = cluster::ask(&urls, matches, true).await?;
        if asked.iter().all(|node| node.status.is_err()) {
            return Err(Failure::Usage(format!("no node answers: {}", urls.join(", "))));
        }
        let look = Look::of(&asked);
        let text = if matches.get_flag("json") { format!("{}\n", look.as_json()) } else { look.page() };
        let is_redrawn = !is_once && !matches.get_flag("json") && io::stdout().is_terminal();
        write_out(format!("{}{text}", if is_redrawn { CLEAR } else { "" }).as_bytes())?;
        if is_once {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(every).await;
    }
}

/// One look at all nodes.
struct Look {
    sentence: String,
    nodes: Vec<NodeRow>,
    /// Partition and requests a second, over all nodes; the hottest first.
    partitions: Vec<(u64, f64)>,
    /// From, to, mean and 95th percentile of a read in microseconds; the slowest first.
    peers: Vec<(String, String, u64, u64)>,
    /// Whether some node that answered did not show its history.
    is_partial: bool,
}

struct NodeRow {
    url: String,
    view: Option<NodeView>,
    operations: Option<[f64; OPERATIONS.len()]>,
}

/// The last number of the list at `path`.
fn last(history: &Value, path: &str) -> Option<f64> {
    history.pointer(path)?.as_array()?.last()?.as_f64()
}

impl Look {
    fn of(asked: &[Asked]) -> Self {
        let seen: Vec<Seen> = asked.iter().map(Asked::seen).collect();
        let mut partitions = BTreeMap::<u64, f64>::new();
        let mut peers = Vec::new();
        let mut nodes = Vec::new();
        for (asked, seen) in asked.iter().zip(&seen) {
            let view = match &seen.known {
                Known::Status(view) => Some(NodeView::clone(view)),
                _ => None,
            };
            for peer in view.iter().flat_map(|view| &view.peers) {
                if let (Some(mean), Some(p95)) = (peer.latency_mean_micros, peer.latency_p95_micros) {
                    peers.push((asked.url.clone(), peer.url.clone(), mean, p95));
                }
            }
            let hottest =
                asked.history.as_ref().and_then(|history| history.pointer("/hottest_partitions")?.as_array());
            for hot in hottest.into_iter().flatten() {
                let number = |name: &str| hot.get(name);
                if let (Some(partition), Some(rate)) = (
                    number("partition").and_then(Value::as_u64),
                    number("requests_per_second").and_then(Value::as_f64),
                ) {
                    *partitions.entry(partition).or_default() += rate;
                }
            }
            let operations = asked.history.as_ref().map(|history| {
                OPERATIONS.map(|name| last(history, &format!("/requests_per_second/{name}")).unwrap_or(0.0))
            });
            nodes.push(NodeRow { url: asked.url.clone(), view, operations });
        }
        let mut partitions: Vec<(u64, f64)> = partitions.into_iter().collect();
        partitions.sort_by(|a, b| b.1.total_cmp(&a.1));
        partitions.truncate(ROWS_MAX);
        peers.sort_by_key(|(.., mean, _)| std::cmp::Reverse(*mean));
        peers.truncate(ROWS_MAX);
        let is_partial = nodes.iter().any(|node| node.view.is_some() && node.operations.is_none());
        Self { sentence: verdict::judge(&seen).sentence, nodes, partitions, peers, is_partial }
    }

    fn page(&self) -> String {
        let mut rows = vec![headings(&[
            "node", "req/s", "get", "put", "delete", "range", "other", "failed/s", "p50", "p99", "cpu",
            "memory",
        ])];
        rows.extend(self.nodes.iter().map(NodeRow::cells));
        let mut page = format!("{}\n\n{}\n", escaped(self.sentence.as_bytes()), table(&rows));
        if self.is_partial {
            page.push_str(
                "\nsome nodes show no operations and partitions: that needs a token with the right metrics\n",
            );
        }
        if !self.partitions.is_empty() {
            let mut rows = vec![headings(&["partition", "req/s"])];
            rows.extend(
                self.partitions.iter().map(|(number, requests)| vec![number.to_string(), rate(*requests)]),
            );
            let _ = writeln!(page, "\nhottest partitions\n{}", table(&rows));
        }
        if !self.peers.is_empty() {
            let mut rows = vec![headings(&["from", "to", "mean", "p95"])];
            rows.extend(self.peers.iter().map(|(from, to, mean, p95)| {
                vec![from.clone(), to.clone(), micros(Some(*mean)), micros(Some(*p95))]
            }));
            let _ = writeln!(page, "\nslowest peers\n{}", table(&rows));
        }
        page
    }

    fn as_json(&self) -> Value {
        let node = |node: &NodeRow| {
            let load = node.view.as_ref().and_then(|view| view.load.as_ref());
            let operations: Option<serde_json::Map<_, _>> = node.operations.map(|rates| {
                OPERATIONS.iter().zip(rates).map(|(name, rate)| ((*name).to_owned(), rate.into())).collect()
            });
            serde_json::json!({
                "url": node.url,
                "is_up": node.view.is_some(),
                "requests_per_second": load.map(|load| load.requests),
                "operations": operations,
                "failures_per_second": load.map(|load| load.failures),
                "latency_us_p50": load.and_then(|load| load.p50_micros),
                "latency_us_p99": load.and_then(|load| load.p99_micros),
                "cpu_cores": load.and_then(|load| load.cpu),
                "resident_bytes": node.view.as_ref().and_then(|view| view.resident),
            })
        };
        let partition = |(number, requests): &(u64, f64)| serde_json::json!({"partition": number, "requests_per_second": requests});
        let peer = |(from, to, mean, p95): &(String, String, u64, u64)| serde_json::json!({"from": from, "to": to, "latency_us_mean": mean, "latency_us_p95": p95});
        serde_json::json!({
            "sentence": self.sentence,
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
            "hottest_partitions": self.partitions.iter().map(partition).collect::<Vec<_>>(),
            "slowest_peers": self.peers.iter().map(peer).collect::<Vec<_>>(),
        })
    }
}

impl NodeRow {
    fn cells(&self) -> Vec<String> {
        let none = || "-".to_owned();
        let Some(view) = &self.view else { return vec![self.url.clone(), "down".to_owned()] };
        let load = view.load.as_ref();
        let mut cells = vec![self.url.clone(), load.map_or_else(none, |load| rate(load.requests))];
        match self.operations {
            Some(rates) => cells.extend(rates.map(rate)),
            None => cells.extend(OPERATIONS.map(|_| none())),
        }
        cells.extend([
            load.map_or_else(none, |load| rate(load.failures)),
            micros(load.and_then(|load| load.p50_micros)),
            micros(load.and_then(|load| load.p99_micros)),
            load.and_then(|load| load.cpu).map_or_else(none, |cores| format!("{:.0} %", cores * 100.0)),
            view.resident.map_or_else(none, verdict::bytes),
        ]);
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Rates of a partition are added up over nodes, the slowest pair comes first, and hostile answers are no figures.
    #[test]
    fn looks_add_up() {
        let asked = |url: &str, rate: f64, micros: u64| Asked {
            url: url.to_owned(),
            status: Ok(json!({"serving": "ok", "load": {"requests_per_second": rate},
                "peers": [{"url": "http://c", "latency_us_mean": micros, "latency_us_p95": micros * 2}]})),
            history: Some(json!({"requests_per_second": {"get": [1.0, rate], "put": "x"},
                "hottest_partitions": [{"partition": 7, "requests_per_second": rate}, {"partition": "\u{1b}"}]})),
        };
        let silent =
            Asked { url: "http://d\u{1b}".to_owned(), status: Err("gone".to_owned()), history: None };
        let look = Look::of(&[asked("http://a", 3.0, 100), asked("http://b", 4.5, 2500), silent]);
        assert_eq!(look.partitions, [(7, 7.5)]);
        assert_eq!(look.peers[0], ("http://b".to_owned(), "http://c".to_owned(), 2500, 5000));
        let page = look.page();
        assert!(page.contains("http://b  http://c  2.5 ms  5.0 ms"), "{page}");
        assert!(page.contains("http://d\\u{1b}  down") && !page.contains('\u{1b}'), "{page}");
        assert_eq!(look.as_json()["nodes"][1]["operations"]["get"], 4.5);
    }
}
