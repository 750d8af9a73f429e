//! `kvorum repair`: makes nodes compare themselves with the others now, and waits. One node after the other, each with
//! a line of progress on a terminal.

use super::client::{Failure, with_access, write_out};
use super::{FAILED, text_of};
use clap::ArgMatches;
use kvorum_client::Client;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// The time limit for one node, unless `--timeout` sets another.
const TIMEOUT: Duration = Duration::from_hours(1);
/// The interval between two checks of a node's progress.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// The width of the progress bar, in characters.
const BAR_WIDTH: usize = 24;

pub(super) async fn run(client: &Client, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let nodes = match text_of(matches, "node") {
        Some(node) => vec![node.to_owned()],
        None => cluster_of(&client.status().await?.body)?,
    };
    let timeout = matches.get_one::<u64>("timeout").map_or(TIMEOUT, |seconds| Duration::from_secs(*seconds));
    let partition = matches.get_one::<u16>("partition").copied();
    if matches.get_flag("drop-unbelievable") && !drop_unbelievable(&nodes, timeout, matches).await? {
        return Ok(ExitCode::from(FAILED));
    }
    let mut is_whole = true;
    for (done, node) in nodes.iter().enumerate() {
        let client = with_access(Client::builder().node(node).timeout(timeout), matches)?.build()?;
        let is_shown = io::stderr().is_terminal();
        let mut progress = Progress { node, done, count: nodes.len(), most: 0, is_shown };
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

/// Makes every node drop the records that it does not believe, before any node is repaired; false if a node failed to.
async fn drop_unbelievable(
    nodes: &[String],
    timeout: Duration,
    matches: &ArgMatches,
) -> Result<bool, Failure> {
    for node in nodes {
        let client = with_access(Client::builder().node(node).timeout(timeout), matches)?.build()?;
        let body: serde_json::Value = match client.drop_unbelievable().await {
            Ok(body) => serde_json::from_str(&body).unwrap_or_default(),
            Err(error) => {
                write_out(format!("{node}: {error}\n").as_bytes())?;
                return Ok(false);
            }
        };
        let dropped = body.get("dropped").and_then(serde_json::Value::as_u64).unwrap_or_default();
        write_out(format!("{node}: {dropped} records and hints from the future dropped\n").as_bytes())?;
    }
    Ok(true)
}

/// The nodes that a status lists.
pub(super) fn cluster_of(status: &str) -> Result<Vec<String>, Failure> {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    let nodes = status.get("cluster").and_then(|nodes| nodes.as_array());
    let nodes: Vec<String> =
        nodes.into_iter().flatten().filter_map(|node| node.as_str().map(str::to_owned)).collect();
    if nodes.is_empty() {
        return Err(Failure::Failed("the node's status does not name the cluster's nodes".to_owned()));
    }
    Ok(nodes)
}

/// The result of a repair as text, and whether the node could be compared with all others.
fn line_of(node: &str, body: &str) -> (String, bool) {
    let repaired: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let number = |name: &str| repaired.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default();
    let mut line = format!(
        "{node}: compared with {}, {} records pulled, {} purged rows removed\n",
        number("compared"),
        number("pulled"),
        number("purged"),
    );
    let failed = repaired.get("failed").and_then(|failed| failed.as_array());
    let failed: Vec<_> = failed.into_iter().flatten().collect();
    for one in &failed {
        let text = |name: &str| one.get(name).and_then(|text| text.as_str()).unwrap_or("?");
        // Writing into a string cannot fail.
        let _ = writeln!(line, "{node}: not compared with {}: {}", text("node"), text("reason"));
    }
    (line, failed.is_empty())
}

/// A progress line that overwrites itself.
struct Progress<'a> {
    node: &'a str,
    /// How many of the `count` nodes are done.
    done: usize,
    count: usize,
    /// The most partitions that this node still had to repair, over all checks.
    most: u64,
    is_shown: bool,
}

impl Progress<'_> {
    /// Waits for `repair`, and shows the node's progress meanwhile.
    async fn until<T>(
        &mut self,
        client: &Client,
        mut repair: std::pin::Pin<&mut impl Future<Output = T>>,
    ) -> T {
        loop {
            match tokio::time::timeout(LOOK_EVERY, repair.as_mut()).await {
                Ok(done) => return done,
                Err(_) if self.is_shown => {
                    // A node that is too busy to answer a status request does not fail the repair.
                    if let Ok(Ok(status)) = tokio::time::timeout(LOOK_EVERY, client.status()).await {
                        self.show(&status.body);
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn show(&mut self, status: &str) {
        let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
        let number =
            |path: &str| status.pointer(path).and_then(serde_json::Value::as_u64).unwrap_or_default();
        let (left, pulled) = (number("/repair/partitions_to_heal"), number("/repair/pulled"));
        self.most = self.most.max(left);
        let bar = bar(self.done, self.count, self.most - left, self.most);
        kvorum_output::tell(format!(
            "\r\x1b[K[{bar}] {}/{} {}: {left} partitions to repair, {pulled} records pulled so far",
            self.done, self.count, self.node
        ));
    }

    fn clear(&self) {
        if self.is_shown {
            kvorum_output::tell("\r\x1b[K");
        }
    }
}

/// A bar of `nodes` equal parts. `done` parts are filled, and the next one by the share `healed` of `most`.
fn bar(done: usize, nodes: usize, healed: u64, most: u64) -> String {
    let permille =
        (healed * 1000).checked_div(most).map_or(0, |permille| usize::try_from(permille).unwrap_or(1000));
    let filled = (BAR_WIDTH * done + BAR_WIDTH * permille / 1000) / nodes.max(1);
    format!("{}{}", "#".repeat(filled.min(BAR_WIDTH)), ".".repeat(BAR_WIDTH.saturating_sub(filled)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bar grows with each node, and within one by the share of its partitions that are repaired.
    #[test]
    fn bars_grow() {
        let filled = |done, nodes, healed, most| bar(done, nodes, healed, most).matches('#').count();
        let steps =
            [(0, 3, 0, 0), (0, 3, 2048, 4096), (0, 3, 4096, 4096), (1, 3, 0, 7), (2, 3, 7, 7), (3, 3, 0, 0)];
        assert_eq!(
            steps.map(|(done, nodes, healed, most)| filled(done, nodes, healed, most)),
            [0, 4, 8, 8, 24, 24]
        );
        assert_eq!(bar(0, 1, 1, 2).len(), BAR_WIDTH);
    }
}
