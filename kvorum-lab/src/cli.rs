//! `kvorum bench`: arguments in the manner of wrk2, one run, a report.
//!
//! Given a rate it is an open loop; without one a closed loop, whose latencies the report marks as such.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::dataset::Dataset;
use crate::error::LabError;
use crate::fdatasync::{FdatasyncLoop, RATE_PER_SECOND};
use crate::load::{
    KeyOrder, Operation, Outcome, Pacing, Plan, Replicas, StreamPlan, prefill, run as run_load,
};
use crate::report::Report;
use crate::units::parse_duration;

/// Offer a load to running nodes and print what came of it.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// What to do
    #[arg(value_enum)]
    pub work: Work,
    /// The nodes, as http://HOST:PORT; connections are dealt to them in turn
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    /// Operating system threads
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: u16,
    /// Keep-alive connections, shared by all threads; mixed work splits them evenly
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// How long, as 30s, 7m or 500ms
    #[arg(short, long, default_value = "30s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Operations per second (open loop); without it as fast as possible (closed loop)
    #[arg(short = 'R', long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    /// mixed: PUTs per second, in place of a share of --rate
    #[arg(long, requires = "get_rate", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub put_rate: Option<u64>,
    /// mixed: GETs per second, in place of a share of --rate
    #[arg(long, requires = "put_rate", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub get_rate: Option<u64>,
    /// mixed: the share of --rate that are GETs, above 0 and below 1
    #[arg(long, default_value_t = 0.5)]
    pub read_fraction: f64,
    /// Print the latency distributions
    #[arg(short = 'L', long)]
    pub latency: bool,
    /// How many different keys
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=999_999_999_999))]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 100)]
    pub value_size: u32,
    /// put, get, mixed and --prefill: how many replicas must confirm, of how many; without it as the nodes are set
    #[arg(long, value_name = "ACK/FROM")]
    pub replicas: Option<Replicas>,
    /// scan: records of one scan; without it every scan is the whole range
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub scan_records: Option<u64>,
    /// Put every key once before the run
    #[arg(long)]
    pub prefill: bool,
    /// Compare every body with what it must be
    #[arg(long)]
    pub verify: bool,
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
}

/// What `kvorum bench` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Write values under keys drawn at random
    Put,
    /// Read keys drawn at random
    Get,
    /// Both at once, each at its own rate
    Mixed,
    /// Read ranges
    Scan,
}

/// The longest that `--prefill` may take a round.
const PREFILL_MAX: Duration = Duration::from_hours(1);

/// Runs `kvorum bench`: prints the report to stdout, complaints to stderr.
///
/// The exit code is 0 where operations succeeded, rates were kept and no body was wrong, 1 otherwise, 2 for impossible arguments.
pub fn run(args: &BenchArgs) -> ExitCode {
    match bench(args) {
        Ok((text, is_good)) => {
            print!("{text}");
            if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("kvorum bench: {error}");
            ExitCode::from(if matches!(error, LabError::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn bench(args: &BenchArgs) -> Result<(String, bool), LabError> {
    let plan = plan(args)?;
    if args.prefill {
        prefill(&plan, PREFILL_MAX)?;
    }
    let probe = match &args.fdatasync {
        Some(directory) => Some(FdatasyncLoop::start(directory, RATE_PER_SECOND, plan.duration)?),
        None => None,
    };
    let outcome = run_load(&plan)?;
    let fdatasync = probe.map(FdatasyncLoop::finish).transpose()?;
    let report =
        Report { plan: &plan, outcome: &outcome, fdatasync: fdatasync.as_ref(), distributions: args.latency };
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", report.json()))
            .map_err(LabError::machine(format!("write {}", path.display())))?;
    }
    Ok((report.to_string(), is_good(&outcome)))
}

/// Every stream had successes, kept its rate, and nothing that came was wrong.
fn is_good(outcome: &Outcome) -> bool {
    let mut streams = outcome.streams.iter();
    streams
        .all(|stream| stream.tally.succeeded > 0 && stream.tally.wrong_bodies == 0 && !stream.is_saturated())
}

/// The run that `args` ask for.
pub fn plan(args: &BenchArgs) -> Result<Plan, LabError> {
    let dataset = Dataset { keys: args.keys, value_bytes: args.value_size as usize, seed: args.seed };
    if args.work == Work::Scan && args.replicas.is_some() {
        return Err(LabError::Usage("--replicas: a scan's quorum is the nodes' own".into()));
    }
    let all = usize::from(args.connections);
    let pacing = args.rate.map_or(Pacing::Closed, |rate_per_second| Pacing::Open { rate_per_second });
    let stream = |name: &str, operation, pacing, connections, seed| StreamPlan {
        name: name.into(),
        operation,
        replicas: args.replicas,
        pacing,
        order: KeyOrder::Uniform { seed },
        dataset,
        connections,
        verify: args.verify,
    };
    let put_seed = args.seed;
    let get_seed = args.seed.wrapping_add(1);
    let streams = match args.work {
        Work::Put => vec![stream("put", Operation::Put, pacing, all, put_seed)],
        Work::Get => vec![stream("get", Operation::Get, pacing, all, get_seed)],
        Work::Scan => {
            vec![stream("scan", Operation::Scan { records: args.scan_records }, pacing, all, get_seed)]
        }
        Work::Mixed => {
            let (puts, gets) = mixed_rates(args)?;
            let connections = all.div_ceil(2);
            let open = |rate_per_second| Pacing::Open { rate_per_second };
            vec![
                stream("put", Operation::Put, open(puts), connections, put_seed),
                stream("get", Operation::Get, open(gets), connections, get_seed),
            ]
        }
    };
    Ok(Plan {
        targets: args.urls.iter().map(|url| parse_url(url)).collect::<Result<_, _>>()?,
        threads: usize::from(args.threads),
        duration: args.duration,
        timeout: args.timeout,
        core: None,
        streams,
    })
}

/// PUTs and GETs per second of mixed work. Without rates there would be no saying which share each gets.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rounded share of a rate")]
fn mixed_rates(args: &BenchArgs) -> Result<(u64, u64), LabError> {
    if let (Some(puts), Some(gets)) = (args.put_rate, args.get_rate) {
        return Ok((puts, gets));
    }
    let rate = args.rate.ok_or_else(|| {
        LabError::Usage("mixed work needs --rate, or --put-rate and --get-rate: it is an open loop".into())
    })?;
    let gets = (crate::units::float(rate) * args.read_fraction).round() as u64;
    if gets == 0 || gets >= rate {
        return Err(LabError::Usage("--read-fraction leaves no PUTs or no GETs: use put or get".into()));
    }
    Ok((rate - gets, gets))
}

/// Resolves `http://HOST:PORT[/]` or `HOST:PORT`.
fn parse_url(url: &str) -> Result<SocketAddr, LabError> {
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
        let closed = planned("get 127.0.0.1:1 http://127.0.0.1:2/").unwrap();
        assert_eq!(closed.streams[0].pacing, Pacing::Closed);
        assert_eq!(closed.targets.len(), 2);
    }

    /// Goal: mixed work's rates are what was asked. Method: both ways of asking.
    #[test]
    fn mixed_rates_add_up() {
        let rates = |line: &str| -> Vec<Pacing> {
            planned(line).unwrap().streams.iter().map(|stream| stream.pacing).collect()
        };
        let open = |rate_per_second| Pacing::Open { rate_per_second };
        assert_eq!(
            rates("mixed -R1000 --read-fraction 0.9 h:1".replace('h', "127.0.0.1").as_str()),
            [open(100), open(900)]
        );
        assert_eq!(rates("mixed --put-rate 8000 --get-rate 7000 127.0.0.1:1"), [open(8000), open(7000)]);
    }

    /// Goal: a quorum reaches every stream, and none is asked for unasked. Method: with and without.
    #[test]
    fn replicas_are_those_of_every_stream() {
        let replicas = |line: &str| -> Vec<Option<Replicas>> {
            planned(line).unwrap().streams.iter().map(|stream| stream.replicas).collect()
        };
        let quorum = Replicas::new(2, 3);
        assert_eq!(replicas("mixed -R10 --replicas 2/3 127.0.0.1:1 127.0.0.1:2"), [quorum, quorum]);
        assert_eq!(replicas("put 127.0.0.1:1"), [None]);
    }

    /// Goal: what cannot be is refused. Method: one fault each.
    #[test]
    fn impossible_arguments_are_refused() {
        for bad in [
            "put",
            "wash http://127.0.0.1:1",
            "put https://127.0.0.1:1",
            "put http://127.0.0.1:1/v0/entity",
            "put 127.0.0.1",
            "put -c0 127.0.0.1:1",
            "put -R0 127.0.0.1:1",
            "put -d0 127.0.0.1:1",
            "mixed 127.0.0.1:1",
            "mixed --put-rate 5 127.0.0.1:1",
            "mixed -R10 --read-fraction 1 127.0.0.1:1",
            "put --replicas 2 127.0.0.1:1",
            "put --replicas 0/3 127.0.0.1:1",
            "put --replicas 4/3 127.0.0.1:1",
            "scan --replicas 2/3 127.0.0.1:1",
        ] {
            assert!(planned(bad).is_err(), "{bad:?} must be refused");
        }
    }
}
