//! `kvorum profile --all`: every event of every node, into a folder.
//!
//! All nodes are profiled at the same time, so that their files show the same seconds of the same load; one event after
//! the other, because a process takes one profile at a time, and so that no event is in another's figures. Nodes that
//! share a process, as those of `kvorum dev`, refuse a second profile: they follow one after the other.

use super::{Refused, fetch};
use crate::FAILED;
use crate::client::{Failure, write_out};
use crate::repair::cluster_of;
use kvorum_client::Builder;
use kvorum_profiler::{Event, Format, stacks_of, titled};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use tokio::task::JoinSet;

/// Takes the profiles of all nodes that one of `urls` knows, or of all `urls` if there are several, with the token of
/// `builder`. The exit code tells whether all came.
pub(super) async fn run(
    builder: &Builder,
    urls: Vec<String>,
    events: &[Event],
    seconds: u16,
    folder: &Path,
) -> Result<ExitCode, Failure> {
    let nodes = nodes_of(builder, urls).await?;
    #[expect(clippy::disallowed_methods, reason = "the user asks for this folder")]
    std::fs::create_dir_all(folder)?;
    let mut index = format!(
        "# Profiles of {} nodes\n\n| event | node | of | files |\n| --- | --- | --- | --- |\n",
        nodes.len()
    );
    let mut is_whole = true;
    for &event in events {
        let mut taken = at_once(builder, &nodes, event, seconds).await;
        for (node, profile) in nodes.iter().zip(&mut taken) {
            if profile.as_ref().is_err_and(|refused| refused.is_busy) {
                *profile = fetch(builder.clone(), node, event.name(), seconds, Format::Svg.name()).await;
            }
        }
        for (node, profile) in nodes.iter().zip(taken) {
            let line = match profile {
                Ok(svg) => keep(folder, node, event, &String::from_utf8_lossy(&svg), &mut index)?,
                Err(refused) => {
                    is_whole = false;
                    let why = match refused.failure {
                        Failure::Usage(why) | Failure::Failed(why) | Failure::ConditionFailed(why) => why,
                        Failure::ReaderGone => "no reader".to_owned(),
                    };
                    let _ = writeln!(index, "| {} | {node} | not taken: {why} | |", event.name());
                    format!("{:<6} {node}: not taken: {why}\n", event.name())
                }
            };
            write_out(line.as_bytes())?;
        }
    }
    write(&folder.join("index.md"), &index)?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The nodes to profile.
async fn nodes_of(builder: &Builder, urls: Vec<String>) -> Result<Vec<String>, Failure> {
    let [url] = urls.as_slice() else { return Ok(urls) };
    let client = builder.clone().node(url).build()?;
    let nodes = cluster_of(&client.status().await?.body)?;
    // A node that is alone may not know the address at which it is reached.
    Ok(if nodes.len() > 1 { nodes } else { urls })
}

/// A profile of each node, in the nodes' order.
async fn at_once(
    builder: &Builder,
    nodes: &[String],
    event: Event,
    seconds: u16,
) -> Vec<Result<bytes::Bytes, Refused>> {
    let mut asked = JoinSet::new();
    for (place, node) in nodes.iter().cloned().enumerate() {
        let builder = builder.clone();
        asked.spawn(async move {
            (place, fetch(builder, &node, event.name(), seconds, Format::Svg.name()).await)
        });
    }
    let mut taken: Vec<_> = asked.join_all().await;
    taken.sort_unstable_by_key(|(place, _)| *place);
    taken.into_iter().map(|(_, profile)| profile).collect()
}

/// Writes the two files of a profile, and returns the line that says so.
fn keep(folder: &Path, node: &str, event: Event, svg: &str, index: &mut String) -> Result<String, Failure> {
    let Some((_, summary, stacks)) = stacks_of(svg) else {
        return Err(Failure::Failed(format!(
            "{node}: a profile without stacks; is it another version of kvorum?"
        )));
    };
    let host = node.trim_start_matches("http://").trim_end_matches('/');
    let host: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let name = format!("{host}-{}", event.name());
    write(&folder.join(format!("{name}.svg")), &titled(svg, node))?;
    write(&folder.join(format!("{name}.collapsed")), &stacks)?;
    let of = format!("{:.1} s, {} {}", summary.seconds, summary.samples, unit(event));
    let _ = writeln!(
        index,
        "| {} | {node} | {of} | [{name}.svg]({name}.svg), [{name}.collapsed]({name}.collapsed) |",
        event.name()
    );
    Ok(format!("{:<6} {node}: {of}: {}\n", event.name(), folder.join(format!("{name}.svg")).display()))
}

/// What the records of a profile are.
fn unit(event: Event) -> &'static str {
    match event {
        Event::Cpu | Event::Wall => "samples",
        Event::Alloc | Event::Live => "sampled allocations",
        Event::Lock => "waits for locks",
    }
}

#[expect(clippy::disallowed_methods, reason = "the user asks for these files")]
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::Failed(format!("cannot write {}: {error}", path.display())))
}
