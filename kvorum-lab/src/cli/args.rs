//! The arguments of `kvorum bench`, and their values.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::dataset::Sizes;
use crate::error::LabError;
use crate::load::keys::THETA;
use crate::load::schedule::RATE_MAX;
use crate::load::{Header, KeyOrder, Mix, Replicas, Stage, Ycsb};
use crate::units::{parse_count, parse_duration};

/// Offer a load to running nodes and print what came of it.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct BenchArgs {
    /// put, get (the default), delete, mixed, scan, cas or add, then the nodes as http://HOST:PORT; connections are dealt
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
    /// A header of every request, as 'Name: value'; may be repeated
    #[arg(short = 'H', long = "header", value_name = "'NAME: VALUE'")]
    pub headers: Vec<Header>,
    /// File with the token to send; without it, the token in the environment is sent
    #[arg(
        long,
        value_name = "FILE",
        help = "File with the token to send, ID.SECRET [env: KVORUM_TOKEN, the token itself]"
    )]
    pub token_file: Option<PathBuf>,
    /// File with the authorities of the nodes' certificates, for https; without it, that of the environment
    #[arg(
        long,
        value_name = "FILE",
        help = "PEM file with the authorities of the nodes' certificates, for https [env: KVORUM_CA]"
    )]
    pub ca: Option<PathBuf>,
    /// File with the certificate to show to nodes; without it, that of the environment
    #[arg(
        long,
        value_name = "FILE",
        requires = "key",
        help = "PEM file with the certificate to show to nodes [env: KVORUM_CERT]"
    )]
    pub cert: Option<PathBuf>,
    /// File with its key; without it, that of the environment
    #[arg(long, value_name = "FILE", requires = "cert", help = "PEM file with its key [env: KVORUM_KEY]")]
    pub key: Option<PathBuf>,
    /// The requests of a wrk or wrk2 script that says no more than what they are; see docs/bench.md
    #[arg(short = 's', long, value_name = "SCRIPT.lua", conflicts_with_all = ["mix", "put_rate", "ycsb", "replicas", "prefill", "verify", "key_size", "distribution", "scan_records"])]
    pub script: Option<PathBuf>,
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
    /// A run of --duration at each of these rates, and a chart of latency against rate: A,B,C or A..B/N (N rates from A
    /// to B)
    #[arg(long, value_name = "RATES", conflicts_with_all = ["rate", "put_rate", "find_max", "hlog"])]
    pub rate_steps: Option<RateSteps>,
    /// Compare every body with what it must be, and say what was compared; cas: check that each version was replaced by one
    /// write at most, and none was skipped; add: check the sums
    #[arg(long)]
    pub verify: bool,
    /// cas, add: send the writes to the nodes in turn, not to the first replica of their key
    #[arg(long)]
    pub no_routing: bool,
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
    /// Replace values on the condition that they are still the same
    Cas,
    /// Add 1 to numbers
    Add,
}

impl Work {
    /// Whether its clients want the same keys: a closed loop of its own.
    pub(super) fn is_of_rivals(self) -> bool {
        matches!(self, Self::Cas | Self::Add)
    }
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

/// The rates of a run in steps, ascending; at least two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateSteps(pub(super) Vec<u64>);

/// The most rates of a run in steps.
const STEPS_MAX: u64 = 100;

impl FromStr for RateSteps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = |text: &str| {
            let rate = parse_count(text).ok().filter(|rate| (1..=RATE_MAX).contains(rate));
            rate.ok_or_else(|| format!("{text:?} is not a rate of 1 to {RATE_MAX}"))
        };
        let rates = match text.split_once("..") {
            Some((first, rest)) => {
                let (last, count) = rest.split_once('/').ok_or("wanted A,B,C or A..B/N")?;
                let (first, last) = (rate(first)?, rate(last)?);
                let count = count.parse().ok().filter(|count| (2..=STEPS_MAX).contains(count));
                let count = count.ok_or_else(|| format!("N of A..B/N lies between 2 and {STEPS_MAX}"))?;
                let span = last.checked_sub(first).ok_or("the rates ascend: A..B/N with B above A")?;
                (0..count).map(|step| first + span * step / (count - 1)).collect()
            }
            None => text.split(',').map(rate).collect::<Result<Vec<_>, _>>()?,
        };
        if rates.len() < 2
            || rates.len() as u64 > STEPS_MAX
            || !rates.is_sorted_by(|before, after| before < after)
        {
            return Err(format!("wanted 2 to {STEPS_MAX} rates, each above the one before"));
        }
        Ok(Self(rates))
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
    pub(super) const fn order(self, seed: u64) -> KeyOrder {
        match self {
            Self::Uniform => KeyOrder::Uniform { seed },
            Self::Zipfian(theta) => KeyOrder::Zipfian { seed, theta },
            Self::Latest(theta) => KeyOrder::Latest { seed, theta },
            Self::Sequential => KeyOrder::Cycle,
        }
    }
}

/// How many keys to put before the run, if any: `None` inside means all.
pub(super) type Prefill = Option<Option<u64>>;

impl BenchArgs {
    /// Whether a load of a lab can have these arguments.
    ///
    /// # Errors
    /// The arguments that are for one run of `kvorum bench`, or in the place of the lab's own.
    pub fn check_lab(&self) -> Result<(), String> {
        if self.script.is_some() || self.rate_steps.is_some() {
            return Err(
                "-s and --rate-steps are not for loads of a lab: a target says what is requested".into()
            );
        }
        Ok(())
    }

    /// Returns the work, the URLs, and how many keys to put before the run.
    ///
    /// `--prefill` may be followed by a number or by nothing; a word that is no number is the next argument.
    pub(super) fn read_words(&self) -> Result<(Work, Vec<&str>, Prefill), LabError> {
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
        if self.no_routing && !said.is_some_and(Work::is_of_rivals) {
            return Err(LabError::Usage("--no-routing: only cas and add are routed".into()));
        }
        if let (Some(said), Some(_)) = (said, &self.script) {
            let said = said.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
            return Err(LabError::Usage(format!("{said}: the script says what is requested (-s)")));
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
