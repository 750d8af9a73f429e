//! `kvorum repair`: has nodes compared now, and waits. One node after the other, each with a line of progress on a terminal.

use super::client::{Failure, write_out};
use super::{FAILED, text_of};
use clap::ArgMatches;
use kvorum_client::Client;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// How long one node may take, unless `--timeout` says otherwise.
const TIMEOUT: Duration = Duration::from_hours(1);
/// Between two looks at how far a node is.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How wide the bar is, in characters.
const BAR_WIDTH: usize = 24;

pub(super) async fn run(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let nodes = match text_of(matches, "node") {
        Some(node) => vec![node.to_owned()],
        None => cluster_of(&client.status().await?.body)?,
    };
    let timeout = matches.get_one::<u64>("timeout").map_or(TIMEOUT, |seconds| Duration::from_secs(*seconds));
    let partition = matches.get_one::<u16>("partition").copied();
    let mut is_whole = true;
    for (done, node) in nodes.iter().enumerate() {
        let client = Client::builder().node(node).timeout(timeout).build()?;
        let progress = Progress { node, done, count: nodes.len(), is_shown: io::stderr().is_terminal() };
        let answer = {
            let repair = std::pin::pin!(client.repair(partition));
            progress.until(&client, repair).await
        };
        progress.clear();
        let (line, is_healed) = match answer {
            Ok(body) => line_of(node, &body),
            Err(error) => (format!("{node}: {error}\n"), false),
        };
        is_whole &= is_healed;
        write_out(line.as_bytes())?;
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The nodes that a status names.
fn cluster_of(status: &str) -> Result<Vec<String>, Failure> {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    let nodes = status.get("cluster").and_then(|nodes| nodes.as_array());
    let nodes: Vec<String> =
        nodes.into_iter().flatten().filter_map(|node| node.as_str().map(str::to_owned)).collect();
    if nodes.is_empty() {
        return Err(Failure::Failed("the node's status does not name the cluster's nodes".to_owned()));
    }
    Ok(nodes)
}

/// What a repair came to, for people, and whether the node could be compared with all others.
fn line_of(node: &str, body: &str) -> (String, bool) {
    let repaired: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let number = |name: &str| repaired.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default();
    let mut line = format!(
        "{node}: compared with {}, {} records brought here, {} to others, {} dead rows removed\n",
        number("compared"),
        number("pulled"),
        number("pushed"),
        number("purged"),
    );
    let failed = repaired.get("failed").and_then(|failed| failed.as_array());
    let failed: Vec<_> = failed.into_iter().flatten().collect();
    for one in &failed {
        let text = |name: &str| one.get(name).and_then(|text| text.as_str()).unwrap_or("?");
        // Writing into a string does not fail.
        let _ = writeln!(line, "{node}: not compared with {}: {}", text("node"), text("reason"));
    }
    (line, failed.is_empty())
}

/// A line that is written over itself.
struct Progress<'a> {
    node: &'a str,
    done: usize,
    count: usize,
    is_shown: bool,
}

impl Progress<'_> {
    /// Waits for `repair`, and shows meanwhile how far the node is.
    async fn until<T>(&self, client: &Client, mut repair: std::pin::Pin<&mut impl Future<Output = T>>) -> T {
        loop {
            match tokio::time::timeout(LOOK_EVERY, repair.as_mut()).await {
                Ok(done) => return done,
                Err(_) if self.is_shown => {
                    // Not a failure of the repair when the node is too busy to say how it is.
                    if let Ok(Ok(status)) = tokio::time::timeout(LOOK_EVERY, client.status()).await {
                        self.show(&status.body);
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn show(&self, status: &str) {
        let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
        let number =
            |path: &str| status.pointer(path).and_then(serde_json::Value::as_u64).unwrap_or_default();
        let filled = BAR_WIDTH * self.done / self.count.max(1);
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(BAR_WIDTH - filled));
        let (differ, moved) =
            (number("/repair/partitions_differing"), number("/repair/pulled") + number("/repair/pushed"));
        eprint!(
            "\r\x1b[K[{bar}] {}/{} {}: {differ} partitions differed when last compared, {moved} records moved so far",
            self.done, self.count, self.node
        );
        let _ = io::stderr().flush();
    }

    fn clear(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}
