//! Finished requests as OTLP/HTTP sends them in JSON: ids in hexadecimal, times in nanoseconds as text.

use super::{Asked, FinishedRequest};
use crate::machine;
use serde_json::{Value, json};
use std::time::Duration;

/// `SPAN_KIND_INTERNAL`, `SPAN_KIND_SERVER`, `SPAN_KIND_CLIENT`.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// The body of an export of `requests`, which the node at `url` answered.
pub fn body(url: &str, requests: &[FinishedRequest]) -> String {
    let spans: Vec<Value> = requests.iter().flat_map(spans_of).collect();
    let resource = [
        text("service.name", "kvorum"),
        text("service.version", machine::VERSION),
        text("service.instance.id", url),
    ];
    let scope = json!({"name": "kvorum", "version": machine::VERSION});
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }]})
    .to_string()
}

fn spans_of(request: &FinishedRequest) -> Vec<Value> {
    let FinishedRequest { traced, of, begun_millis, took, steps } = request;
    let at = |since: Duration| (u128::from(*begun_millis) * 1_000_000 + since.as_nanos()).to_string();
    let trace = format!("{:032x}", traced.context.trace);
    let own = format!("{:016x}", traced.context.span);
    let (name, is_failed, attributes) = match of {
        Asked::Client { method, status, key_hash } => {
            let attributes = vec![
                text("http.request.method", method),
                text("url.path", "/v0/entity"),
                json!({"key": "http.response.status_code", "value": {"intValue": status.to_string()}}),
                text("kvorum.key_sha256", key_hash),
            ];
            (format!("{method} /v0/entity"), *status >= 500, attributes)
        }
        Asked::Peer { call, caller, is_refused } => {
            ((*call).to_owned(), *is_refused, vec![text("kvorum.caller", caller)])
        }
    };
    let mut span = json!({
        "traceId": trace,
        "spanId": own,
        "name": name,
        "kind": SERVER,
        "startTimeUnixNano": at(Duration::ZERO),
        "endTimeUnixNano": at(*took),
        "attributes": attributes,
    });
    if let Some(fields) = span.as_object_mut() {
        if let Some(parent) = traced.parent {
            fields.insert("parentSpanId".to_owned(), format!("{parent:016x}").into());
        }
        if is_failed {
            fields.insert("status".to_owned(), json!({"code": ERROR}));
        }
    }
    let mut spans = vec![span];
    for step in steps {
        let is_own = step.node.as_ref().is_none_or(|(_, is_own)| *is_own);
        // This node's own replica is called without the network: its part of a write is the commit.
        let name = if is_own && step.what == "apply" { "commit" } else { step.what };
        let mut attributes: Vec<Value> = step.node.iter().map(|(url, _)| text("kvorum.node", url)).collect();
        if step.took.is_none() {
            attributes.push(json!({"key": "kvorum.unanswered", "value": {"boolValue": true}}));
        }
        let end = step.took.map_or(*took, |took| step.begun + took).max(step.begun);
        spans.push(json!({
            "traceId": trace,
            "spanId": format!("{:016x}", step.span),
            "parentSpanId": format!("{:016x}", step.parent),
            "name": name,
            "kind": if is_own { INTERNAL } else { CLIENT },
            "startTimeUnixNano": at(step.begun),
            "endTimeUnixNano": at(end),
            "attributes": attributes,
        }));
    }
    spans
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

#[cfg(test)]
mod tests {
    use super::super::{FinishedStep, Traced};
    use super::*;
    use crate::slow::TraceContext;
    use std::num::{NonZeroU64, NonZeroU128};

    /// The request is the parent of its waits, and the caller's span its own.
    #[test]
    fn spans_have_their_parents() {
        let step = |span, what, node: Option<(&str, bool)>, took| FinishedStep {
            span,
            parent: 3,
            what,
            node: node.map(|(url, is_own)| (url.to_owned(), is_own)),
            begun: Duration::from_micros(5),
            took,
        };
        let took = Some(Duration::from_micros(10));
        let request = FinishedRequest {
            traced: Traced {
                context: TraceContext { trace: NonZeroU128::MIN, span: NonZeroU64::new(3).unwrap() },
                parent: Some(2),
            },
            of: Asked::Client { method: "PUT", status: 504, key_hash: "abc".to_owned() },
            begun_millis: 1_000,
            took: Duration::from_millis(1),
            steps: vec![
                step(4, "apply", Some(("http://a:1", true)), took),
                step(5, "apply", Some(("http://b:1", false)), None),
                step(6, "stamp", None, took),
            ],
        };
        let body: Value = serde_json::from_str(&body("http://a:1", &[request])).unwrap();
        let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        let field = |at: usize, name: &str| spans[at][name].clone();
        assert_eq!(field(0, "traceId"), "00000000000000000000000000000001");
        assert_eq!(
            (field(0, "parentSpanId"), field(0, "spanId")),
            ("0000000000000002".into(), "0000000000000003".into())
        );
        assert_eq!(
            (field(0, "startTimeUnixNano"), field(0, "endTimeUnixNano")),
            ("1000000000".into(), "1001000000".into())
        );
        assert_eq!(field(0, "status")["code"], 2);
        let names: Vec<_> = (0..4).map(|at| field(at, "name")).collect();
        assert_eq!(names, ["PUT /v0/entity", "commit", "apply", "stamp"]);
        assert_eq!([1, 2, 3].map(|at| field(at, "kind")), [1, 3, 1]);
        assert!([1, 2, 3].iter().all(|at| field(*at, "parentSpanId") == "0000000000000003"));
        assert_eq!(
            (field(1, "endTimeUnixNano"), field(2, "endTimeUnixNano")),
            ("1000015000".into(), "1001000000".into())
        );
        assert_eq!(field(2, "attributes")[1]["key"], "kvorum.unanswered");
    }
}
