//! Questions to a node that are no part of a load: is it there, a key, a page, a profile. They go by `kvorum-client`.

use std::net::SocketAddr;
use std::time::Duration;

use kvorum_client::{Client, Error, RetryPolicy};

use crate::error::LabError;

/// Has one node asked by a client of its own, and no other node, with one attempt for each question, which ends within
/// `timeout`. Blocks; not for use inside a runtime.
///
/// # Errors
/// The outer error is the machine's; the inner one is what became of the question.
pub fn ask<T>(
    node: SocketAddr,
    timeout: Duration,
    question: impl AsyncFnOnce(Client) -> Result<T, Error>,
) -> Result<Result<T, Error>, LabError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LabError::machine("start a runtime"))?;
    let builder = Client::builder().node(format!("http://{node}")).timeout(timeout);
    let client = builder.retry(RetryPolicy::NONE).routing(false).build();
    Ok(runtime.block_on(async { question(client?).await }))
}
