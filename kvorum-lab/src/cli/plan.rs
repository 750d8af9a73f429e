//! From arguments to the plan and the options of a run.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvorum_tls::ClientTls;

use super::args::{BenchArgs, Rate, Work};
use crate::dataset::{Dataset, KEY_BYTES};
use crate::error::LabError;
use crate::load::{
    Header, KeyOrder, Mix, Operation, Pacing, Plan, RunOptions, StreamPlan, Target, Template, script,
};

/// From so many requests on a script's numbers begin again.
const SCRIPT_REQUESTS_MAX: u64 = 999_999_999_999;

/// The default duration of a run without stages.
const DURATION: Duration = Duration::from_secs(30);

/// The options of the run that `args` ask for.
///
/// # Errors
/// [`LabError::Usage`] for impossible arguments.
pub fn options(args: &BenchArgs) -> Result<RunOptions, LabError> {
    let template = match &args.script {
        Some(file) => Some(Arc::new(scripted(args, file)?)),
        None => None,
    };
    if args.key_size.is_some_and(|sizes| sizes.min() < KEY_BYTES) {
        return Err(LabError::Usage(format!("--key-size: no key is below {KEY_BYTES} bytes")));
    }
    let is_open = args.rate.is_some()
        || args.put_rate.is_some()
        || args.find_max.is_some()
        || args.rate_steps.is_some();
    if args.coalesce.is_some() && !is_open {
        return Err(LabError::Usage(
            "--coalesce: as fast as possible nothing becomes due; give a --rate".into(),
        ));
    }
    let (work, ..) = args.read_words()?;
    let mix = match (work, args.ycsb, args.mix) {
        (Work::Delete, ..) => Some(Mix::deletes()),
        (Work::Mixed, Some(ycsb), _) => Some(ycsb.mix()),
        (Work::Mixed, None, Some(mix)) => Some(mix),
        (Work::Mixed, None, None) if args.put_rate.is_none() => Some(halves(args.read_fraction)?),
        (Work::Put | Work::Get | Work::Mixed | Work::Scan | Work::Cas | Work::Add, ..) => None,
    };
    Ok(RunOptions {
        warm_up: args.warmup.unwrap_or_default(),
        coalesce: args.coalesce.unwrap_or_default(),
        key_bytes: args.key_size,
        value_bytes: Some(args.value_size),
        mix,
        template,
        headers: headers(args)?,
        ticks: None,
        stop: None,
    })
}

/// The plan of the run that `args` ask for.
///
/// # Errors
/// [`LabError::Usage`] for impossible arguments.
pub fn plan(args: &BenchArgs) -> Result<Plan, LabError> {
    let dataset = Dataset { keys: args.keys, value_bytes: args.value_size.max(), seed: args.seed };
    let (work, urls, _) = args.read_words()?;
    if work.is_of_rivals() {
        return Err(LabError::Usage("cas and add: not for loads of a lab".into()));
    }
    if work == Work::Scan && args.replicas.is_some() {
        return Err(LabError::Usage("--replicas: a scan's quorum is the nodes' own".into()));
    }
    let (pacing, duration) = match (&args.rate, args.duration) {
        (None, duration) => (Pacing::Closed, duration.unwrap_or(DURATION)),
        (Some(Rate::Constant(rate)), duration) => {
            (Pacing::Open { rate_per_second: *rate }, duration.unwrap_or(DURATION))
        }
        (Some(Rate::Stages(_)), Some(_)) => {
            return Err(LabError::Usage("--duration: stages have their own".into()));
        }
        (Some(Rate::Stages(stages)), None) => {
            (Pacing::Staged(stages.as_slice().into()), stages.iter().map(|stage| stage.duration).sum())
        }
    };
    let stream = |name: &str, operation, pacing, connections, seed| StreamPlan {
        name: name.into(),
        operation,
        replicas: args.replicas,
        pacing,
        order: args.ycsb.map_or_else(|| args.distribution.order(seed), |ycsb| ycsb.order(seed)),
        dataset,
        connections,
        verify: args.verify,
    };
    let all = usize::from(args.connections);
    let put_seed = args.seed;
    let get_seed = args.seed.wrapping_add(1);
    let streams = match (work, args.put_rate, args.get_rate) {
        _ if args.script.is_some() => {
            let operation = StreamPlan {
                // Every request has a number of its own, from which a script's numbers follow.
                order: KeyOrder::Cycle,
                dataset: Dataset { keys: SCRIPT_REQUESTS_MAX, ..dataset },
                ..stream("script", Operation::Put, pacing, all, put_seed)
            };
            vec![operation]
        }
        (Work::Put, ..) => vec![stream("put", Operation::Put, pacing, all, put_seed)],
        (Work::Get, ..) => vec![stream("get", Operation::Get, pacing, all, get_seed)],
        (Work::Delete, ..) => vec![stream("delete", Operation::Put, pacing, all, put_seed)],
        (Work::Scan, ..) => {
            vec![stream("scan", Operation::Scan { records: args.scan_records }, pacing, all, get_seed)]
        }
        (Work::Mixed, Some(puts), Some(gets)) => {
            let connections = all.div_ceil(2);
            let open = |rate_per_second| Pacing::Open { rate_per_second };
            vec![
                stream("put", Operation::Put, open(puts), connections, put_seed),
                stream("get", Operation::Get, open(gets), connections, get_seed),
            ]
        }
        (Work::Mixed | Work::Cas | Work::Add, ..) => {
            vec![stream("mixed", Operation::Get, pacing, all, get_seed)]
        }
    };
    Ok(Plan {
        targets: targets(args, &urls)?,
        threads: usize::from(args.threads),
        duration,
        timeout: args.timeout,
        core: None,
        streams,
    })
}

/// What a connection over TLS needs, from `args` or the environment; none where neither names authorities.
pub(super) fn tls(args: &BenchArgs) -> Result<Option<ClientTls>, LabError> {
    let usage = |error: kvorum_tls::PemError| LabError::Usage(error.to_string());
    // An empty variable is how scripts unset one.
    let path = |given: &Option<PathBuf>, variable: &str| {
        let variable = || std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        given.clone().or_else(variable)
    };
    let identity = path(&args.cert, "KVORUM_CERT").zip(path(&args.key, "KVORUM_KEY"));
    let identity = identity.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
    path(&args.ca, "KVORUM_CA").map(|ca| ClientTls::load(&ca, identity).map_err(usage)).transpose()
}

/// The nodes at `urls`.
fn targets(args: &BenchArgs, urls: &[&str]) -> Result<Vec<Target>, LabError> {
    let tls = tls(args)?;
    let target = |url: &&str| {
        let url = if args.script.is_some() { split_path(url).0 } else { url };
        let Some(rest) = url.strip_prefix("https://") else { return Ok(parse_url(url)?.into()) };
        let needed = || {
            LabError::Usage(format!("{url}: https needs --ca, the authorities of the nodes' certificates"))
        };
        let tls = tls.clone().ok_or_else(needed)?;
        let host = rest.trim_end_matches('/').rsplit_once(':').map_or(rest, |(host, _)| host);
        Ok(Target { address: parse_url(rest)?, secured: Some((tls, host.to_owned())) })
    };
    urls.iter().map(target).collect()
}

/// The headers of `args`, and the one with the token that `args` or the environment name.
fn headers(args: &BenchArgs) -> Result<Vec<Header>, LabError> {
    let mut headers = args.headers.clone();
    let text = match &args.token_file {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            LabError::Usage(format!("cannot read the token in {}: {error}", path.display()))
        })?),
        // A script's service may be another's, to which this token does not belong.
        None if args.script.is_some() || headers.iter().any(|header| header.is("authorization")) => None,
        // An empty variable is how scripts unset one.
        None => std::env::var("KVORUM_TOKEN").ok().filter(|token| !token.is_empty()),
    };
    if let Some(text) = text {
        if headers.iter().any(|header| header.is("authorization")) {
            return Err(LabError::Usage("give --token-file or a header Authorization, not both".into()));
        }
        headers.push(Header::bearer(&text).map_err(LabError::Usage)?);
    }
    Ok(headers)
}

/// The request of the script in `file`, to the path of the URLs where it names none.
fn scripted(args: &BenchArgs, file: &Path) -> Result<Template, LabError> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| LabError::Usage(format!("{shown}: {error}")))?;
    let (_, urls, _) = args.read_words()?;
    let path = urls.first().map_or("/", |url| split_path(url).1);
    if urls.iter().any(|url| split_path(url).1 != path) {
        return Err(LabError::Usage("the URLs have different paths; a script is for one".into()));
    }
    script::read(&text, path).map_err(|error| LabError::Usage(format!("{shown}, {error}")))
}

/// A URL without its path, and the path.
fn split_path(url: &str) -> (&str, &str) {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let path = url.get(begin..).and_then(|rest| rest.find('/')).map_or(url.len(), |at| begin + at);
    let (server, path) = url.split_at_checked(path).unwrap_or((url, ""));
    (server, if path.is_empty() { "/" } else { path })
}

/// A mix of GETs and PUTs with the share of GETs in `read_fraction`, to a ten-thousandth.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 10,000")]
fn halves(read_fraction: f64) -> Result<Mix, LabError> {
    let get = (read_fraction.clamp(0.0, 1.0) * 1e4).round() as u32;
    if get == 0 || get == 10_000 {
        return Err(LabError::Usage("--read-fraction leaves no PUTs or no GETs: use put or get".into()));
    }
    Ok(Mix { get, put: 10_000 - get, ..Mix::default() })
}

/// Resolves `http://HOST:PORT[/]` or `HOST:PORT`.
///
/// # Errors
/// [`LabError::Usage`] for anything else.
pub fn parse_url(url: &str) -> Result<SocketAddr, LabError> {
    let bad = |why: String| LabError::Usage(format!("{url}: {why}; wanted http://HOST:PORT"));
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('/') {
        return Err(bad("no path and no other scheme".into()));
    }
    let mut found = authority.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
    found.next().ok_or_else(|| bad("no address".into()))
}
