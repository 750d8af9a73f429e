//! The handlers of what a node says of itself: status, metrics and history.

use super::body::ReplyBody;
use super::error::Failure;
use super::handler::{Service, accepts, vary_by_accept};
use super::metrics_page;
use super::metrics_text::Format;
use super::rooms::Rooms;
use super::settings;
use super::status::{self, Own, Serving};
use super::target;
use crate::coordinator::PeerStatus;
use crate::history::{
    History, HotPartition, PEERS_MAX, PeerSample, Reading, SAMPLE_EVERY, SAMPLES_MAX, Sample,
};
use crate::machine::{DiskSpace, Process};
use crate::metrics::Operation;
use crate::replica::Digests;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

pub(super) fn show_status<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let is_quorum_needed = target::parse_status(request.uri().query())?;
    let shared = service.rooms.get().map(|rooms| &*rooms.shared);
    let phase = *service.phase.borrow();
    let ended = service.supervisor.ended();
    let serving = Serving::of(phase, ended.as_ref(), shared);
    let json = accepts(request.headers(), "application/json");
    let (samples, _) = service.history.last(1);
    let joining = service.joining.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let own = Own {
        joining: Some(joining).filter(|waits_for| !waits_for.is_empty()),
        facts: &service.facts,
        uptime: service.clock.mono().saturating_sub(service.started),
        process: Process::read(),
        disk: DiskSpace::of(&service.facts.data_dir),
        load: samples.first(),
        tls: service.tls.as_ref().map(|tls| (tls.mode().name(), tls.seconds_left(service.clock.wall()))),
    };
    let body = status::render(&own, phase, serving, ended.as_ref(), shared, json);
    let mut response = Response::new(ReplyBody::full(Bytes::from(body)));
    let content_type = if json { "application/json" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    vary_by_accept(response.headers_mut());
    if !serving.is_able(is_quorum_needed) {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    Ok(response)
}

pub(super) fn show_metrics<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    let Rooms { shared, replica, pools, store_metrics, .. } = service.rooms()?;
    let scrape = metrics_page::Scrape {
        threads: &service.thread_metrics,
        store: store_metrics,
        engine: replica.engine_stats(),
        connections: service.connection_count.load(Ordering::Relaxed),
        body_bytes: service.body_budget.used(),
        commit_queue: replica.queue_len(),
        pools,
        purged: replica.sweeper().purged(),
        sweeper: replica.sweeper().name(),
        reclaimer: replica.reclaimer(),
        durability: &service.facts.durability,
        store_state: replica.health(),
        supervisor: &service.supervisor,
        security: &service.security,
        spans: &service.spans,
        tls: service.tls.as_deref(),
        cluster: shared,
        keys: replica.digests().map(Digests::keys),
        process: Process::read(),
        disk: DiskSpace::of(&service.facts.data_dir),
    };
    let is_open = accepts(request.headers(), "application/openmetrics-text");
    let format = if is_open { Format::OpenMetrics } else { Format::Classic };
    let mut response = Response::new(ReplyBody::full(Bytes::from(metrics_page::render(&scrape, format))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    vary_by_accept(response.headers_mut());
    Ok(response)
}

/// Shows the settings, each with its source.
pub(super) fn show_settings<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    let json = accepts(request.headers(), "application/json");
    let body = settings::render(&service.facts.settings, json);
    let mut response = Response::new(ReplyBody::full(Bytes::from(body)));
    let content_type = if json { "application/json" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    vary_by_accept(response.headers_mut());
    Ok(response)
}

/// Samples the node's load, forever.
pub async fn keep_history(service: Arc<Service>) {
    loop {
        service.history.record(reading(&service));
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}

fn reading(service: &Service) -> Reading {
    let process = Process::read();
    let peers = service.rooms.get().map(|rooms| PeerStatus::of_all(&rooms.shared)).unwrap_or_default();
    let peer = |peer: &PeerStatus| PeerSample {
        latency_mean_micros: u32::try_from(peer.latency_mean.as_micros()).unwrap_or(u32::MAX),
        clock_offset_millis: peer.clock_offset.and_then(|offset| i32::try_from(offset.millis).ok()),
        is_up: peer.state == "up",
    };
    Reading {
        at: service.clock.mono(),
        wall_millis: service.clock.wall().0,
        cpu: process.cpu,
        resident_bytes: process.resident_bytes,
        disk_free_bytes: DiskSpace::of(&service.facts.data_dir).map(|disk| disk.free),
        peers: peers.iter().take(PEERS_MAX).map(peer).collect(),
        ..Reading::count(&service.thread_metrics)
    }
}

/// Shows the load of the last quarter of an hour as JSON.
pub(super) fn show_history<B>(
    service: &Service,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let count = target::parse_history(request.uri().query())?.map_or(SAMPLES_MAX, usize::from);
    let peers = service.rooms.get().map(|rooms| PeerStatus::of_all(&rooms.shared)).unwrap_or_default();
    let urls: Vec<String> = peers.into_iter().take(PEERS_MAX).map(|peer| peer.url).collect();
    let body = render_history(&service.facts.url, &urls, &service.history, count);
    let mut response = Response::new(ReplyBody::full(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// One list per figure, the oldest sample first: shorter than a list of objects.
fn render_history(url: &str, peers: &[String], history: &History, count: usize) -> String {
    let (samples, hottest) = history.last(count);
    let list =
        |of: &dyn Fn(&Sample) -> serde_json::Value| -> serde_json::Value { samples.iter().map(of).collect() };
    let operations: serde_json::Map<_, _> = Operation::ALL
        .into_iter()
        .map(|operation| {
            let rate =
                |sample: &Sample| rounded(sample.requests.get(operation as usize).copied().unwrap_or(0.0));
            (operation.name().to_owned(), list(&rate))
        })
        .collect();
    let peer = |(place, url): (usize, &String)| {
        let of = |sample: &Sample| sample.peers.get(place).copied();
        serde_json::json!({
            "url": url,
            "up": list(&|sample| of(sample).map(|peer| peer.is_up).into()),
            "latency_us_mean": list(&|sample| of(sample).map(|peer| peer.latency_mean_micros).into()),
            "clock_offset_ms": list(&|sample| of(sample).and_then(|peer| peer.clock_offset_millis).into()),
        })
    };
    let hot = |HotPartition { partition, requests }: &HotPartition| serde_json::json!({"partition": partition, "requests_per_second": rounded(*requests)});
    let body = serde_json::json!({
        "url": url,
        "interval_ms": u64::try_from(SAMPLE_EVERY.as_millis()).unwrap_or(u64::MAX),
        "at_ms": list(&|sample| sample.wall_millis.into()),
        "requests_per_second": operations,
        "failures_per_second": list(&|sample| rounded(sample.failures)),
        "latency_us_p50": list(&|sample| sample.p50_micros.into()),
        "latency_us_p99": list(&|sample| sample.p99_micros.into()),
        "cpu_cores": list(&|sample| sample.cpu_cores.map(rounded).into()),
        "resident_bytes": list(&|sample| sample.resident_bytes.into()),
        "disk_free_bytes": list(&|sample| sample.disk_free_bytes.into()),
        "peers": peers.iter().enumerate().map(peer).collect::<Vec<_>>(),
        "hottest_partitions": hottest.iter().map(hot).collect::<Vec<_>>(),
    });
    format!("{body}\n")
}

/// With two decimals: more are noise.
pub(super) fn rounded(value: f32) -> serde_json::Value {
    ((f64::from(value) * 100.0).round() / 100.0).into()
}
