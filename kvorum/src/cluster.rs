//! All nodes of a cluster at once: one node names the others, then each is asked on its own, at the same time.

use crate::client::{DEFAULT_URL, Failure, with_access};
use crate::text_of;
use clap::ArgMatches;
use kvorum_client::{Client, RetryPolicy};
use kvorum_server::verdict::{Known, NodeView, Seen};
use serde_json::Value;
use std::time::Duration;

/// The most nodes that are asked: no cluster is larger.
const NODES_MAX: usize = 1024;

/// A node's answers.
pub(super) struct Asked {
    /// Its URL.
    pub url: String,
    /// Its status, or why there is none.
    pub status: Result<Value, String>,
    /// Its history, if it was asked for and the token allows it.
    pub history: Option<Value>,
}

impl Asked {
    /// What the verdict is given.
    pub(super) fn seen(&self) -> Seen {
        let silent = |reason: &str| Known::Silent { reason: reason.to_owned() };
        let known = match &self.status {
            Ok(status) => match NodeView::of(status) {
                Some(view) => Known::Status(Box::new(view)),
                None => silent("its answer is no status"),
            },
            Err(reason) => silent(reason),
        };
        Seen { url: self.url.clone(), known }
    }
}

/// The time for one look at all nodes.
pub(super) fn timeout(matches: &ArgMatches) -> Duration {
    Duration::from_secs(matches.get_one::<u64>("timeout").copied().unwrap_or(5))
}

/// The nodes that `--url` or the environment names.
pub(super) fn named(matches: &ArgMatches) -> Vec<String> {
    let urls = text_of(matches, "url").map(str::to_owned);
    let urls = urls.or_else(|| std::env::var("KVORUM_URL").ok()).unwrap_or_else(|| DEFAULT_URL.to_owned());
    urls.split(',').map(|url| url.trim().trim_end_matches('/').to_owned()).collect()
}

/// The URLs of all nodes, from the first node that says them: by `/v0/topology`, or by its status where the token or the
/// node's state does not allow that. If none says them, the nodes that were named.
pub(super) async fn nodes(client: &Client, matches: &ArgMatches) -> Vec<String> {
    let topology = match client.page("/v0/topology?ranks=1").await {
        Ok(page) if page.code == 200 => serde_json::from_slice(&page.body).unwrap_or_default(),
        _ => Value::Null,
    };
    let members = topology.pointer("/nodes").and_then(Value::as_array);
    let mut urls: Vec<String> =
        members.into_iter().flatten().filter_map(|node| url_of(node.get("url")?)).collect();
    if urls.is_empty()
        && let Ok(status) = client.status().await
    {
        let status: Value = serde_json::from_str(&status.body).unwrap_or_default();
        let members = status.pointer("/cluster").and_then(Value::as_array);
        urls = members.into_iter().flatten().filter_map(url_of).collect();
    }
    // A lone node that was not told its name may say one under which it cannot be reached.
    if urls.len() < 2 {
        urls = named(matches);
    }
    // Placement's order means nothing to people.
    urls.sort();
    urls.dedup();
    urls.truncate(NODES_MAX);
    urls
}

fn url_of(value: &Value) -> Option<String> {
    value.as_str().filter(|url| url.len() < 1000).map(str::to_owned)
}

/// Asks all nodes at once, each until `timeout` at most.
pub(super) async fn ask(
    urls: &[String],
    matches: &ArgMatches,
    with_history: bool,
) -> Result<Vec<Asked>, Failure> {
    let timeout = timeout(matches);
    let mut asking = Vec::new();
    for url in urls {
        let builder = Client::builder().node(url).timeout(timeout).retry(RetryPolicy::NONE).routing(false);
        // A URL that a node made up is that node's fault, not the user's.
        let client = with_access(builder, matches)?.build();
        let url = url.clone();
        asking.push(tokio::spawn(async move {
            let client = match client {
                Ok(client) => client,
                Err(error) => return Asked { url, status: Err(error.to_string()), history: None },
            };
            let status = match client.status().await {
                Ok(status) => {
                    serde_json::from_str(&status.body).map_err(|_| "its answer is no status".to_owned())
                }
                Err(error) => Err(reason(&error)),
            };
            let history = if with_history && status.is_ok() { history_of(&client).await } else { None };
            Asked { url, status, history }
        }));
    }
    let mut asked = Vec::new();
    for (task, url) in asking.into_iter().zip(urls) {
        let failed =
            |_| Asked { url: url.clone(), status: Err("it could not be asked".to_owned()), history: None };
        asked.push(task.await.unwrap_or_else(failed));
    }
    Ok(asked)
}

/// Why a node gives no status, without the words that its row has already.
fn reason(error: &kvorum_client::Error) -> String {
    let text = error.to_string();
    match text.split_once("no answer from ").and_then(|(_, rest)| rest.split_once(": ")) {
        Some((_, reason)) => reason.to_owned(),
        None => text.strip_prefix("status: ").unwrap_or(&text).to_owned(),
    }
}

async fn history_of(client: &Client) -> Option<Value> {
    let page = client.page("/v0/history?last=1").await.ok().filter(|page| page.code == 200)?;
    serde_json::from_slice(&page.body).ok()
}
