//! `kvorum bench`: arguments in the manner of wrk2, one run or a search for the highest rate, a report.
//!
//! Given a rate it is an open loop; without one a closed loop, whose latencies the report marks as such.
//! [`BenchArgs`] are the arguments, [`plan()`] and [`options()`] interpret them, [`run()`] carries them out.

use std::fmt::Write;
use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::dataset::{Dataset, KEY_BYTES, Sizes};
use crate::error::LabError;
use crate::fdatasync::{FdatasyncLoop, RATE_PER_SECOND};
use crate::find_max::highest;
use crate::hdr_log::{log_head, percentiles};
use crate::load::keys::THETA;
use crate::load::schedule::RATE_MAX;
use crate::load::{
    KeyOrder, LEAD, Mix, Operation, Outcome, Pacing, Plan, Replicas, RunOptions, Stage, StreamPlan, Ycsb,
    prefill_with, run_with,
};
use crate::monitor::Monitor;
use crate::report::{Distributions, Report};
use crate::units::{grouped, latency, nanos, parse_count, parse_duration};

/// Offer a load to running nodes and print what came of it.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// put, get (the default), delete, mixed or scan, then the nodes as http://HOST:PORT; connections are dealt
    /// to them in turn
    #[arg(value_name = "[WORK] URL")]
    pub words: Vec<String>,
    /// Operating system threads
    #[arg(short, long, default_value_t = 2, value_parser = several)]
    pub threads: u16,
    /// Keep-alive connections, shared by all threads; --put-rate and --get-rate split them evenly
    #[arg(short, long, default_value_t = 64, value_parser = several)]
    pub connections: u16,
    /// How long, as 30s, 7m or 500ms; 30s where --rate has no stages
    #[arg(short, long, value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Operations per second (open loop), or stages as 1000:30s,1000-5000:60s (a ramp); without it as fast as
    /// possible (closed loop)
    #[arg(short = 'R', long)]
    pub rate: Option<Rate>,
    /// mixed: PUTs per second, as a load of its own beside the GETs
    #[arg(long, requires = "get_rate", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..=RATE_MAX))]
    pub put_rate: Option<u64>,
    /// mixed: GETs per second, as a load of its own beside the PUTs
    #[arg(long, requires = "put_rate", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..=RATE_MAX))]
    pub get_rate: Option<u64>,
    /// mixed: the share of operations that are GETs, above 0 and below 1
    #[arg(long, default_value_t = 0.5)]
    pub read_fraction: f64,
    /// mixed: shares of kinds, as get=90,put=8,delete=2; kinds are get, put, insert, delete, scan, read-modify-write
    #[arg(long, conflicts_with_all = ["put_rate", "read_fraction"])]
    pub mix: Option<Mix>,
    /// One of YCSB's core workloads: its mix and its popularity of keys
    #[arg(long, value_enum, conflicts_with_all = ["mix", "put_rate", "read_fraction", "distribution"])]
    pub ycsb: Option<Ycsb>,
    /// Print the latency distributions
    #[arg(short = 'L', long)]
    pub latency: bool,
    /// Print the latency distributions, and also those from when operations were sent, not from when they were due
    #[arg(short = 'U', long, visible_alias = "u_latency")]
    pub uncorrected: bool,
    /// How many different keys
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=999_999_999_999))]
    pub keys: u64,
    /// Which keys: uniform, zipfian[:THETA], latest[:THETA] or sequential; THETA is 0.99
    #[arg(long, default_value = "uniform")]
    pub distribution: Distribution,
    /// Bytes of a key, as 16 (no less) or 16-64
    #[arg(long)]
    pub key_size: Option<Sizes>,
    /// Bytes of a value, as 100 or 10-4096
    #[arg(long, default_value = "100")]
    pub value_size: Sizes,
    /// All but scans: how many replicas must confirm, of how many; without it as the nodes are set
    #[arg(long, value_name = "ACK/FROM")]
    pub replicas: Option<Replicas>,
    /// scan: records of one scan; without it every scan is the whole range
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub scan_records: Option<u64>,
    /// Put every key, or the first N, once before the run
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "")]
    pub prefill: Option<String>,
    /// Make operations for so long before any is counted
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub warmup: Option<Duration>,
    /// Find the highest rate whose p99 is not above this and at which nothing fails, in runs of --duration; --rate
    /// is the first to be tried
    #[arg(long, value_name = "P99", value_parser = parse_duration, conflicts_with = "put_rate")]
    pub find_max: Option<Duration>,
    /// Compare every body with what it must be
    #[arg(long)]
    pub verify: bool,
    /// Open loop: wake no more often than this, and send what has become due together; latency counts from when it was
    /// due. The driver then costs less of a machine that it shares with the nodes
    #[arg(long, value_parser = parse_duration)]
    pub coalesce: Option<Duration>,
    /// How long an operation may take (a scan: may make no progress)
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Seed of keys and values; values put with one seed do not verify with another
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run a bare fdatasync loop in this directory alongside and print its latencies
    #[arg(long, value_name = "DIR")]
    pub fdatasync: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the percentile distribution (.hgrm) for the usual plotters; of several loads one file each
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,
    /// Also write a histogram for every second, as an HDR histogram log (.hlog, format 1.3)
    #[arg(long, value_name = "FILE", conflicts_with = "find_max")]
    pub hlog: Option<PathBuf>,
}

/// 1 to 65,535, as `64` or `1k`.
fn several(text: &str) -> Result<u16, String> {
    let count = parse_count(text)?;
    u16::try_from(count)
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| format!("{text:?} is not 1 to {}", u16::MAX))
}

/// What `kvorum bench` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Write values under keys drawn at random
    Put,
    /// Read keys drawn at random
    Get,
    /// Remove keys drawn at random
    Delete,
    /// Several kinds of operation
    Mixed,
    /// Read ranges
    Scan,
}

/// The rates of an open loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rate {
    /// One rate, for the whole duration.
    Constant(u64),
    /// Several rates, each with its duration.
    Stages(Vec<Stage>),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(':') {
            return text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self::Stages);
        }
        let rate = parse_count(text).ok().filter(|rate| (1..=RATE_MAX).contains(rate));
        rate.map(Self::Constant).ok_or_else(|| format!("{text:?} is neither 1 to {RATE_MAX} nor stages"))
    }
}

/// How the popularity of keys is distributed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// All keys are equally popular.
    Uniform,
    /// A few keys are very popular, with this theta.
    Zipfian(f64),
    /// The newest keys are the most popular, with this theta.
    Latest(f64),
    /// Keys one after the other.
    Sequential,
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, theta) = text.split_once(':').map_or((text, None), |(name, theta)| (name, Some(theta)));
        let skew = match theta {
            None => THETA,
            Some(theta) => theta
                .parse()
                .ok()
                .filter(|theta| (0.01..0.9999).contains(theta))
                .ok_or("THETA lies between 0.01 and 0.9999")?,
        };
        match (name, theta) {
            ("uniform", None) => Ok(Self::Uniform),
            ("sequential", None) => Ok(Self::Sequential),
            ("zipfian", _) => Ok(Self::Zipfian(skew)),
            ("latest", _) => Ok(Self::Latest(skew)),
            _ => Err("wanted uniform, zipfian[:THETA], latest[:THETA] or sequential".into()),
        }
    }
}

impl Distribution {
    const fn order(self, seed: u64) -> KeyOrder {
        match self {
            Self::Uniform => KeyOrder::Uniform { seed },
            Self::Zipfian(theta) => KeyOrder::Zipfian { seed, theta },
            Self::Latest(theta) => KeyOrder::Latest { seed, theta },
            Self::Sequential => KeyOrder::Cycle,
        }
    }
}

/// The default duration of a run without stages.
const DURATION: Duration = Duration::from_secs(30);

/// The default first rate of the search for the highest rate.
const FIRST_RATE: u64 = 1_000;

/// The longest that a round of `--prefill` may take.
const PREFILL_MAX: Duration = Duration::from_hours(1);

/// Runs `kvorum bench`: prints the report to stdout, complaints and progress to stderr.
///
/// The exit code is 0 if all operations succeeded, all rates were kept and no body was wrong. It is 1
/// otherwise, also for a run that was interrupted, and 2 for impossible arguments.
pub fn run(args: &BenchArgs) -> ExitCode {
    match bench(args) {
        Ok((text, is_good)) => match show(text) {
            Ok(()) if is_good => ExitCode::SUCCESS,
            Ok(()) => ExitCode::FAILURE,
            Err(error) => {
                kvorum_output::tell_line!("kvorum bench: {error}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            kvorum_output::tell_line!("kvorum bench: {error}");
            ExitCode::from(if matches!(error, LabError::Usage(_)) { 2 } else { 1 })
        }
    }
}

/// Prints a part of the result. If the reader has gone, as `head` does, that is no failure.
pub(crate) fn show(text: impl AsRef<[u8]>) -> Result<(), LabError> {
    match kvorum_output::print(text) {
        Err(error) if !kvorum_output::is_reader_gone(&error) => {
            Err(LabError::machine("write to standard output")(error))
        }
        _ => Ok(()),
    }
}

/// Becomes true at the first SIGINT or SIGTERM: the run ends, and the report is still printed. The second
/// signal ends the process.
fn stop_signal() -> Result<watch::Receiver<bool>, LabError> {
    let (stop, is_told) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LabError::machine("wait for signals"))?;
    let (interrupt, terminate) = {
        let _context = runtime.enter();
        let of = |kind| signal(kind).map_err(LabError::machine("wait for signals"));
        (of(SignalKind::interrupt())?, of(SignalKind::terminate())?)
    };
    let wait = move || {
        runtime.block_on(async {
            let (mut interrupt, mut terminate) = (interrupt, terminate);
            let mut next = async || {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            };
            next().await;
            stop.send_replace(true);
            kvorum_output::tell_line!("kvorum bench: interrupted; the report of what was measured follows");
            next().await;
        });
        std::process::exit(1);
    };
    thread::Builder::new()
        .name("bench-signals".to_owned())
        .spawn(wait)
        .map_err(LabError::machine("start a thread"))?;
    Ok(is_told)
}

fn bench(args: &BenchArgs) -> Result<(String, bool), LabError> {
    let (plan, mut options) = (plan(args)?, options(args)?);
    options.stop = Some(stop_signal()?);
    let (_, _, prefill) = args.read_words()?;
    if let Some(keys) = prefill {
        prefill_with(&plan, &options, keys, PREFILL_MAX)?;
    }
    let probe = match &args.fdatasync {
        Some(directory) => Some(FdatasyncLoop::start(directory, RATE_PER_SECOND, plan.duration)?),
        None => None,
    };
    let found = match args.find_max {
        Some(bound) => search(args, &plan, &options, bound)?,
        None => Found {
            text: String::new(),
            trials: Value::Null,
            run: Some((plan.clone(), watched(args, &plan, &options)?)),
        },
    };
    let fdatasync = probe.map(FdatasyncLoop::finish).transpose()?;
    let Some((plan, outcome)) = found.run else {
        return Ok((found.text, false));
    };
    let distributions = Distributions {
        // As in wrk2: latencies from the sending are only meaningful beside latencies from the due time.
        corrected: args.latency || args.uncorrected,
        uncorrected: args.uncorrected,
    };
    let report = Report {
        plan: &plan,
        options: &options,
        outcome: &outcome,
        fdatasync: fdatasync.as_ref(),
        distributions,
    };
    if let Some(path) = &args.json {
        let mut value = report.json();
        if let Some(object) = value.as_object_mut() {
            object.insert("find_max".into(), found.trials);
        }
        write_file(path, &format!("{value:#}\n"))?;
    }
    if let Some(path) = &args.hgrm {
        for stream in &outcome.streams {
            let path = if outcome.streams.len() == 1 { path.clone() } else { named(path, &stream.plan.name) };
            write_file(&path, &percentiles(&stream.tally.latency))?;
        }
    }
    if !std::io::stdout().is_terminal() {
        // The warning must also reach a user who redirects the report.
        kvorum_output::tell(report.complaints());
    }
    Ok((format!("{}{report}", found.text), is_good(&outcome)))
}

/// One run, with progress on a terminal and the log if it was asked for.
fn watched(args: &BenchArgs, plan: &Plan, options: &RunOptions) -> Result<Outcome, LabError> {
    let is_live = std::io::stderr().is_terminal();
    if !is_live && args.hlog.is_none() {
        return run_with(plan, options);
    }
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (monitor, ticks) = Monitor::start(plan, is_live.then(String::new))?;
    // The options with the sender end here, and so the monitor ends.
    let outcome = run_with(plan, &RunOptions { ticks: Some(ticks), ..options.clone() });
    let watched = monitor.finish()?;
    if let Some(path) = &args.hlog {
        write_file(path, &(log_head(started + LEAD + options.warm_up) + &watched.log))?;
    }
    outcome
}

/// The result of a search for the highest rate.
struct Found {
    text: String,
    trials: Value,
    /// The plan at the highest rate, and its outcome.
    run: Option<(Plan, Outcome)>,
}

fn search(args: &BenchArgs, plan: &Plan, options: &RunOptions, bound: Duration) -> Result<Found, LabError> {
    let first = match &args.rate {
        Some(Rate::Constant(rate)) => *rate,
        None => FIRST_RATE,
        Some(Rate::Stages(_)) => return Err(LabError::Usage("--find-max takes no stages".into())),
    };
    let mut text = format!("Highest rate with p99 up to {} and no failure\n", latency(nanos(bound)));
    let (mut trials, mut best) = (Vec::new(), None);
    let found = highest(first, |rate_per_second| {
        let mut plan = plan.clone();
        for stream in &mut plan.streams {
            stream.pacing = Pacing::Open { rate_per_second };
        }
        let outcome = watched(args, &plan, options)?;
        let stream = outcome.streams.first().ok_or_else(|| LabError::Usage("no stream".into()))?;
        let p99 = stream.tally.latency.percentile(99.0);
        let is_kept = is_good(&outcome);
        let is_accepted = is_kept && p99 <= nanos(bound);
        let why = match (is_accepted, is_kept, stream.is_driver_late()) {
            (true, ..) => "accepted",
            (_, false, _) => "rate not kept, or failures",
            (_, _, true) => "p99 too high, and the driver itself woke late",
            (..) => "p99 too high",
        };
        let line = format!(
            "  {:>12}/s: {:.2}/s kept, p99 {}, {} failed: {why}",
            grouped(rate_per_second),
            stream.rate(),
            latency(p99),
            grouped(stream.failed()),
        );
        if std::io::stderr().is_terminal() {
            kvorum_output::tell_line!("{line}");
        }
        // Writing into a `String` cannot fail.
        let _ = writeln!(text, "{line}");
        trials.push(json!({
            "rate": rate_per_second,
            "kept": stream.rate(),
            "p99": p99,
            "failed": stream.failed(),
            "is_accepted": is_accepted,
        }));
        if is_accepted {
            best = Some((plan, outcome));
        }
        Ok::<_, LabError>(is_accepted)
    })?;
    match found {
        Some(rate) => drop(writeln!(text, "Highest: {}/s; its run:\n", grouped(rate))),
        None => text.push_str("  !! NO RATE WAS ACCEPTED\n"),
    }
    Ok(Found {
        text,
        trials: json!({ "p99_max": nanos(bound), "highest": found, "trials": trials }),
        run: best,
    })
}

/// The path of the load `name`: `dir/a.hgrm` of `put` becomes `dir/a-put.hgrm`.
fn named(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(String::new, |text| format!(".{}", text.to_string_lossy()));
    path.with_file_name(format!("{stem}-{name}{extension}"))
}

fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    std::fs::write(path, text).map_err(LabError::machine(format!("write {}", path.display())))
}

/// Whether the run came to its end, and every stream had successes, no failures, and kept its rate.
pub fn is_good(outcome: &Outcome) -> bool {
    let mut streams = outcome.streams.iter();
    outcome.interrupted.is_none()
        && streams.all(|stream| stream.tally.succeeded > 0 && stream.failed() == 0 && !stream.is_saturated())
}

/// How many keys to put before the run, if any: `None` inside means all.
type Prefill = Option<Option<u64>>;

impl BenchArgs {
    /// Returns the work, the URLs, and how many keys to put before the run.
    ///
    /// `--prefill` may be followed by a number or by nothing; a word that is no number is the next argument.
    fn read_words(&self) -> Result<(Work, Vec<&str>, Prefill), LabError> {
        let mut words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let prefill = match self.prefill.as_deref() {
            None => None,
            Some("") => Some(None),
            Some(text) => match text.parse::<u64>() {
                Ok(0) => return Err(LabError::Usage("--prefill 0 puts nothing".into())),
                Ok(keys) => Some(Some(keys)),
                Err(_) => {
                    let place = if Work::from_str(text, false).is_ok() { 0 } else { words.len() };
                    words.insert(place, text);
                    Some(None)
                }
            },
        };
        let is_mixed = self.mix.is_some() || self.ycsb.is_some() || self.put_rate.is_some();
        let said = words.first().and_then(|word| Work::from_str(word, false).ok());
        if said.is_some() {
            words.remove(0);
        }
        let work = said.unwrap_or(if is_mixed { Work::Mixed } else { Work::Get });
        if is_mixed && work != Work::Mixed {
            return Err(LabError::Usage("--mix, --ycsb, --put-rate and --get-rate are of mixed work".into()));
        }
        if words.is_empty() {
            return Err(LabError::Usage("no URL".into()));
        }
        Ok((work, words, prefill))
    }
}

/// How many keys to put before the run: `None` for no prefill, `Some(None)` for every key.
///
/// # Errors
/// [`LabError::Usage`] for impossible arguments.
pub fn prefill_of(args: &BenchArgs) -> Result<Option<Option<u64>>, LabError> {
    args.read_words().map(|(_, _, prefill)| prefill)
}

/// The options of the run that `args` ask for.
///
/// # Errors
/// [`LabError::Usage`] for impossible arguments.
pub fn options(args: &BenchArgs) -> Result<RunOptions, LabError> {
    if args.key_size.is_some_and(|sizes| sizes.min() < KEY_BYTES) {
        return Err(LabError::Usage(format!("--key-size: no key is below {KEY_BYTES} bytes")));
    }
    let is_open = args.rate.is_some() || args.put_rate.is_some() || args.find_max.is_some();
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
        (Work::Put | Work::Get | Work::Mixed | Work::Scan, ..) => None,
    };
    Ok(RunOptions {
        warm_up: args.warmup.unwrap_or_default(),
        coalesce: args.coalesce.unwrap_or_default(),
        key_bytes: args.key_size,
        value_bytes: Some(args.value_size),
        mix,
        template: None,
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
        (Work::Mixed, ..) => vec![stream("mixed", Operation::Get, pacing, all, get_seed)],
    };
    Ok(Plan {
        targets: urls.iter().map(|url| parse_url(url)).collect::<Result<_, _>>()?,
        threads: usize::from(args.threads),
        duration,
        timeout: args.timeout,
        core: None,
        streams,
    })
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn planned(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        plan(&command.bench).map_err(|error| error.to_string())
    }

    /// Goal: wrk2's way of writing options is understood. Method: the line of the old load scripts.
    #[test]
    fn a_line_for_wrk2_is_understood() {
        let plan = planned("put -t2 -c64 -d7m -R5000 --latency http://127.0.0.1:8080").unwrap();
        assert_eq!(plan.threads, 2);
        assert_eq!(plan.duration, Duration::from_mins(7));
        assert_eq!(plan.targets, ["127.0.0.1:8080".parse().unwrap()]);
        assert_eq!(plan.streams.len(), 1);
        assert_eq!(plan.streams[0].connections, 64);
        assert_eq!(plan.streams[0].pacing, Pacing::Open { rate_per_second: 5000 });
        let same = planned("put -t2 -c1k -d7m -R5k -U http://127.0.0.1:8080").unwrap();
        assert_eq!((same.streams[0].connections, &same.streams[0].pacing), (1_000, &plan.streams[0].pacing));
        let closed = planned("get 127.0.0.1:1 http://127.0.0.1:2/").unwrap();
        assert_eq!(closed.streams[0].pacing, Pacing::Closed);
        assert_eq!(closed.targets.len(), 2);
    }

    fn optioned(line: &str) -> RunOptions {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        options(&Command::try_parse_from(words).unwrap().bench).unwrap()
    }

    fn prefilled(line: &str) -> (Work, usize, Prefill) {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let args = Command::try_parse_from(words).unwrap().bench;
        let (work, urls, prefill) = args.read_words().unwrap();
        (work, urls.len(), prefill)
    }

    /// Goal: mixed work has the requested shares or rates. Method: every way to request them.
    #[test]
    fn mixed_work_is_what_was_asked() {
        let rates = |line: &str| -> Vec<Pacing> {
            planned(line).unwrap().streams.iter().map(|stream| stream.pacing.clone()).collect()
        };
        let open = |rate_per_second| Pacing::Open { rate_per_second };
        let shares = |line| optioned(line).mix.map(|mix| mix.to_string());
        let line = "mixed -R1000 --read-fraction 0.9 127.0.0.1:1";
        assert_eq!(rates(line), [open(1000)]);
        assert_eq!(shares(line).unwrap(), "get=9000,put=1000");
        assert_eq!(shares("mixed 127.0.0.1:1").unwrap(), "get=5000,put=5000");
        assert_eq!(shares("--mix get=1,delete=1 127.0.0.1:1").unwrap(), "get=1,delete=1");
        assert_eq!(shares("delete 127.0.0.1:1").unwrap(), "delete=1");
        let line = "mixed --put-rate 8000 --get-rate 7000 127.0.0.1:1";
        assert_eq!(rates(line), [open(8000), open(7000)]);
        assert_eq!(shares(line), None);
    }

    /// Goal: YCSB's presets have their mix and their keys. Method: two of them.
    #[test]
    fn presets_are_understood() {
        let order = |line: &str| planned(line).unwrap().streams[0].order.clone();
        assert!(matches!(order("--ycsb A -R10 127.0.0.1:1"), KeyOrder::Zipfian { .. }));
        assert!(matches!(order("mixed --ycsb d 127.0.0.1:1"), KeyOrder::Latest { .. }));
        assert_eq!(optioned("--ycsb b 127.0.0.1:1").mix.unwrap().to_string(), "get=95,put=5");
    }

    /// Goal: stages and ramps are read, with their durations. Method: a line, and its whole meaning.
    #[test]
    fn stages_are_understood() {
        let plan = planned("put --rate 1000:30s,1000-5000:60s,5000:1m 127.0.0.1:1").unwrap();
        let stage = |begin_per_second, end_per_second, seconds| Stage {
            begin_per_second,
            end_per_second,
            duration: Duration::from_secs(seconds),
        };
        let stages = [stage(1000, 1000, 30), stage(1000, 5000, 60), stage(5000, 5000, 60)];
        assert_eq!(plan.streams[0].pacing, Pacing::Staged(stages.into()));
        assert_eq!(plan.duration, Duration::from_secs(150));
    }

    /// Goal: keys and sizes are those asked for. Method: a line for each.
    #[test]
    fn keys_and_sizes_are_understood() {
        let order = |name: &str| {
            planned(&format!("get --distribution {name} 127.0.0.1:1")).unwrap().streams[0].order.clone()
        };
        assert!(
            matches!(order("zipfian:0.8"), KeyOrder::Zipfian { theta, .. } if (theta - 0.8).abs() < 1e-9)
        );
        assert!(matches!(order("latest"), KeyOrder::Latest { .. }));
        assert!(matches!(order("sequential"), KeyOrder::Cycle));
        let options = optioned("put --key-size 16-40 --value-size 10-4096 --warmup 2s 127.0.0.1:1");
        assert_eq!(options.key_bytes.unwrap().to_string(), "16-40");
        assert_eq!(options.value_bytes.unwrap().to_string(), "10-4096");
        assert_eq!(options.warm_up, Duration::from_secs(2));
    }

    /// Goal: `--prefill` takes a number or none, wherever it stands. Method: the places.
    #[test]
    fn prefill_takes_a_number_or_none() {
        for (line, expect) in [
            ("get a:1 b:2", (Work::Get, 2, None)),
            ("get --prefill a:1", (Work::Get, 1, Some(None))),
            ("--prefill mixed a:1", (Work::Mixed, 1, Some(None))),
            ("--prefill a:1", (Work::Get, 1, Some(None))),
            ("get --prefill 500 a:1", (Work::Get, 1, Some(Some(500)))),
            ("get a:1 --prefill", (Work::Get, 1, Some(None))),
            ("get --prefill --verify a:1", (Work::Get, 1, Some(None))),
            ("a:1", (Work::Get, 1, None)),
        ] {
            assert_eq!(prefilled(line), expect, "{line}");
        }
    }

    /// Goal: files of several loads do not overwrite each other. Method: a path.
    #[test]
    fn files_are_named_by_load() {
        assert_eq!(named(Path::new("out/a.hgrm"), "put"), Path::new("out/a-put.hgrm"));
    }

    /// Goal: a quorum reaches every stream, and without one no stream asks for any. Method: with and without.
    #[test]
    fn replicas_are_those_of_every_stream() {
        let replicas = |line: &str| -> Vec<Option<Replicas>> {
            planned(line).unwrap().streams.iter().map(|stream| stream.replicas).collect()
        };
        let quorum = Replicas::new(2, 3);
        assert_eq!(
            replicas("mixed --put-rate 5 --get-rate 5 --replicas 2/3 127.0.0.1:1 127.0.0.1:2"),
            [quorum, quorum]
        );
        assert_eq!(replicas("put 127.0.0.1:1"), [None]);
    }

    /// Goal: impossible arguments are refused. Method: one fault each.
    #[test]
    fn impossible_arguments_are_refused() {
        for bad in [
            "put",
            "wash http://127.0.0.1:1",
            "put https://127.0.0.1:1",
            "put http://127.0.0.1:1/v0/entity",
            "put 127.0.0.1",
            "put -c0 127.0.0.1:1",
            "put -c70k 127.0.0.1:1",
            "put -R0 127.0.0.1:1",
            "put -d0 127.0.0.1:1",
            "put -R10:0s 127.0.0.1:1",
            "put -R10:1s -d5s 127.0.0.1:1",
            "put -R10:1s,x 127.0.0.1:1",
            "get --mix get=1 127.0.0.1:1",
            "put --ycsb A 127.0.0.1:1",
            "--ycsb G 127.0.0.1:1",
            "get --distribution zipfian:1 127.0.0.1:1",
            "get --distribution uniform:0.5 127.0.0.1:1",
            "get --value-size 9-8 127.0.0.1:1",
            "get --key-size 8 127.0.0.1:1",
            "get --coalesce 1ms 127.0.0.1:1",
            "get --prefill 0 127.0.0.1:1",
            "mixed --find-max 5ms --put-rate 5 --get-rate 5 127.0.0.1:1",
            "mixed --put-rate 5 127.0.0.1:1",
            "mixed -R10 --read-fraction 1 127.0.0.1:1",
            "put --replicas 2 127.0.0.1:1",
            "put --replicas 0/3 127.0.0.1:1",
            "put --replicas 4/3 127.0.0.1:1",
            "scan --replicas 2/3 127.0.0.1:1",
        ] {
            let is_refused = planned(bad).is_err() || {
                let words = std::iter::once("bench").chain(bad.split_whitespace());
                Command::try_parse_from(words).map_or(true, |command| options(&command.bench).is_err())
            };
            assert!(is_refused, "{bad:?} must be refused");
        }
    }
}
