//! POST of a key: counters and appends. Both are conditional writes in every respect, whether or not they have a condition.

use super::admission::LARGE_BYTES;
use super::body::{self, ReplyBody, read_value};
use super::conditions::{self, Wish};
use super::connection::Connection;
use super::error::Failure;
use super::handler::{self, ThreadState};
use super::target::EditQuery;
use crate::coordinator::{APPENDED_BYTES_MAX, Edit, Edited};
use crate::slow;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;

// Values of this size need no turn.
const _: () = assert!((APPENDED_BYTES_MAX as u64) < LARGE_BYTES);

/// Adds to the number that is the key's value, or appends to the value.
pub(super) async fn post<B>(
    state: &ThreadState,
    connection: &Connection,
    request: Request<B>,
) -> Result<Response<ReplyBody>, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let wish = conditions::of_write(request.headers(), request.method())?;
    let coordinator = state.coordinator()?;
    let (query, quorum) = handler::parse_entity(state, coordinator, &request)?;
    Wish::check_majority(quorum)?;
    // Held until the value is written, so that it counts towards the budget.
    let mut reserved = None;
    let edit = match query.edit {
        // The parser has refused a POST without one.
        None => return Err(super::target::TargetError::MissingEdit.into()),
        Some(EditQuery::Add(addend)) => {
            if !request.body().is_end_stream() {
                return Err(Failure::body_of_add());
            }
            Edit::Add { addend }
        }
        Some(EditQuery::Append) => {
            let announced = body::announced(request.headers())?;
            let limits = &state.service.limits;
            let value_bytes_max = limits.value_bytes_max.min(APPENDED_BYTES_MAX as u64);
            let is_lost = || connection.is_lost();
            let (body, budget) = (request.into_body(), &state.service.body_budget);
            let reading = read_value(body, announced, value_bytes_max, budget, is_lost, async || Ok(()));
            let (suffix, suffix_reserved) = slow::step("body", None, reading).await?;
            reserved = Some(suffix_reserved);
            let value_bytes_max = usize::try_from(value_bytes_max).unwrap_or(APPENDED_BYTES_MAX);
            Edit::Append { suffix, value_bytes_max }
        }
    };
    // The cluster may have grown or shrunk while the body came.
    let quorum = handler::quorum_of(query.replicas, coordinator).unwrap_or(quorum);
    let edited = conditions::edit(coordinator, query.key, edit, wish, quorum).await?;
    drop(reserved);
    let (written, number) = match edited {
        Edited::Written { written, number } => (written, number),
        Edited::Failed { current } => return Err(Failure::condition_failed(current)),
        Edited::Unfit(error) => return Err(Failure::unfit(error)),
    };
    let mut response = Response::new(ReplyBody::empty());
    if let Some(number) = number {
        *response.body_mut() = ReplyBody::full(number);
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
    } else {
        *response.status_mut() = StatusCode::CREATED;
    }
    handler::insert_version(response.headers_mut(), written.version);
    handler::insert_replicas(response.headers_mut(), written.confirmed, quorum);
    Ok(response)
}
