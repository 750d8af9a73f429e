//! `kvorum bench cas`: clients that replace the values of a few keys, each on the condition that the value is still the one
//! that it knows. `kvorum bench add` shares all but what a client does (`add`).
//!
//! It is a closed loop over `kvorum-client`, which sends the writes of a key to its first replica: what an application gets.
//! Latencies are not its subject, but how many writes succeed, how many rivals were faster, and how the successes are shared
//! among the clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvorum_client::{Client, Condition, Overflow, PutOptions, ReadOptions, RetryPolicy};
use tokio::sync::watch;

use super::add::Added;
use super::args::{BenchArgs, Work as Word};
use super::plan::tls;
use super::{BAD_RUN, FAILED, INTERRUPTED};
use crate::chain::{Success, Writes};
use crate::error::LabError;
use crate::rng::{SplitMix64, mix};
use crate::units::float;

/// How long a run takes by default.
const DURATION: Duration = Duration::from_secs(30);

/// How often the last value of a key is asked for, and the pause in between.
const LAST_READS: u32 = 20;
const LAST_READ_PAUSE: Duration = Duration::from_millis(500);

/// What one client did.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) succeeded: u64,
    condition_failed: u64,
    pub(super) unknown: u64,
    /// Requests that came to nothing: certainly nothing was done.
    failed: u64,
    error: Option<String>,
    /// By key; kept for `--verify` alone.
    keys: BTreeMap<u64, Writes>,
    /// By key, of a client that adds.
    pub(super) added: BTreeMap<u64, Added>,
}

/// What all clients share.
#[derive(Clone)]
pub(super) struct Work {
    is_added: bool,
    pub(super) keys: u64,
    prefix: String,
    pub(super) options: PutOptions,
    until: Instant,
    stop: watch::Receiver<bool>,
    next_id: Arc<AtomicU64>,
    is_verified: bool,
}

/// Runs it; returns the report and the exit code.
pub(super) fn run(args: &BenchArgs, stop: &watch::Receiver<bool>) -> Result<(String, u8), LabError> {
    if args.rate.is_some() || args.find_max.is_some() || args.rate_steps.is_some() || args.prefill.is_some() {
        return Err(LabError::Usage("cas and add are closed loops without a prefill: no rates".into()));
    }
    let begun = Instant::now();
    let work = Work {
        is_added: args.read_words()?.0 == Word::Add,
        keys: args.keys,
        // Another run begins with keys of its own: what it finds there would be a chain that nobody checked.
        prefix: format!("cas-{:016x}-", mix(args.seed ^ started_millis())),
        options: PutOptions { replicas: args.replicas.map(Into::into), ..PutOptions::default() },
        until: begun + args.duration.unwrap_or(DURATION),
        stop: stop.clone(),
        next_id: Arc::new(AtomicU64::new(1)),
        is_verified: args.verify,
    };
    let (threads, clients) = (usize::from(args.threads), usize::from(args.connections));
    let mut tallies = Vec::with_capacity(clients);
    let ran: Vec<_> = thread::scope(|scope| {
        let share = |thread| (thread..clients).step_by(threads);
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let work = &work;
                scope.spawn(move || in_runtime(replace_all(args, work, share(thread))))
            })
            .collect();
        handles.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    for ran in ran {
        let ran = ran.map_err(|_| LabError::Subject("a thread of clients panicked".to_owned()))?;
        tallies.extend(ran??);
    }
    let took = begun.elapsed();
    let mut text = report(&tallies, took, work.is_added);
    let mut broken = None;
    if args.verify && work.is_added {
        broken = in_runtime(async { Ok(work.check_sums(&client_of(args)?, &tallies).await) })??;
        let _ = match &broken {
            Some(broken) => writeln!(text, "!! a sum is wrong: {broken}"),
            None => writeln!(text, "Verified          each addition counted once, unknown ones once at most"),
        };
    } else if args.verify {
        let checked: usize =
            tallies.iter().flat_map(|tally| tally.keys.values()).map(|writes| writes.successes.len()).sum();
        broken = in_runtime(async { Ok(work.verify(&client_of(args)?, &mut tallies).await) })??;
        let line = match &broken {
            Some(broken) => format!("!! the chain is broken: {broken}\n"),
            None => {
                format!("Verified          {checked} versions: each replaced once at most, none skipped\n")
            }
        };
        text.push_str(&line);
    }
    let has_succeeded = tallies.iter().any(|tally| tally.succeeded > 0);
    let code = match (*stop.borrow(), broken, has_succeeded) {
        (true, ..) => INTERRUPTED,
        (_, None, true) => 0,
        (_, None, false) => FAILED,
        (_, Some(_), _) => BAD_RUN,
    };
    Ok((text, code))
}

/// Runs `future` on this thread.
fn in_runtime<F: Future>(future: F) -> Result<F::Output, LabError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LabError::machine("start a runtime"))?;
    Ok(runtime.block_on(future))
}

/// The clients of one thread, which share its connections.
async fn replace_all(
    args: &BenchArgs,
    work: &Work,
    numbers: impl Iterator<Item = usize>,
) -> Result<Vec<Tally>, LabError> {
    let client = client_of(args)?;
    let clients: Vec<_> = numbers
        .map(|number| {
            let chance = SplitMix64::new(mix(args.seed.wrapping_add(number as u64)));
            let (work, client) = (work.clone(), client.clone());
            tokio::spawn(async move {
                if work.is_added {
                    work.add(client, chance).await
                } else {
                    work.replace(client, chance).await
                }
            })
        })
        .collect();
    let mut tallies = Vec::with_capacity(clients.len());
    for client in clients {
        tallies.push(client.await.map_err(|error| LabError::Subject(format!("a client ended: {error}")))?);
    }
    Ok(tallies)
}

fn started_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn client_of(args: &BenchArgs) -> Result<Client, LabError> {
    let (_, urls, _) = args.read_words()?;
    let connections = usize::from(args.connections);
    let mut builder = Client::builder()
        .nodes(
            urls.iter()
                .map(|url| if url.contains("://") { (*url).to_owned() } else { format!("http://{url}") }),
        )
        .timeout(args.timeout)
        .connections_per_node_max(connections)
        .in_flight_max(connections, Overflow::Wait { waiting_max: connections })
        .retry(RetryPolicy::NONE)
        .routing(!args.no_routing);
    if let Some(tls) = tls(args)? {
        builder = builder.tls(tls);
    }
    let token = match &args.token_file {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(LabError::machine(format!("read the token in {}", path.display())))?,
        ),
        None => std::env::var("KVORUM_TOKEN").ok().filter(|token| !token.is_empty()),
    };
    if let Some(token) = token {
        builder = builder.token(token.trim());
    }
    builder.build().map_err(|error| LabError::Usage(error.to_string()))
}

impl Work {
    pub(super) fn is_over(&self) -> bool {
        *self.stop.borrow() || Instant::now() >= self.until
    }

    pub(super) fn key(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    /// One client: replaces values until the time is up.
    async fn replace(self, client: Client, mut chance: SplitMix64) -> Tally {
        let mut tally = Tally::default();
        while !self.is_over() {
            let number = chance.below(self.keys);
            let key = self.key(number);
            let mut known = match self.version(&client, &key).await {
                Ok(known) => known,
                Err(error) => {
                    tally.fail(&error);
                    continue;
                }
            };
            // Until it succeeds once, as an update does.
            loop {
                let condition = known.clone().map_or(Condition::Absent, Condition::Version);
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                let done = client.put_if(&key, id.to_string(), &condition, self.options).await;
                let error = match done {
                    Ok(version) => {
                        tally.succeeded += 1;
                        if self.is_verified {
                            let expected = known.map(|known| known.as_str().to_owned());
                            let version = version.as_str().to_owned();
                            let writes = tally.keys.entry(number).or_default();
                            writes.successes.push(Success { version, expected, id });
                        }
                        break;
                    }
                    Err(error) => error,
                };
                if !error.is_condition_failed() {
                    if error.may_have_taken_effect() {
                        tally.unknown += 1;
                        if self.is_verified {
                            tally.keys.entry(number).or_default().unknown.push(id);
                        }
                    } else {
                        tally.fail(&error);
                    }
                    break;
                }
                tally.condition_failed += 1;
                match self.version(&client, &key).await {
                    Ok(found) if !self.is_over() => known = found,
                    Ok(_) => break,
                    Err(error) => {
                        tally.fail(&error);
                        break;
                    }
                }
            }
        }
        tally
    }

    async fn version(
        &self,
        client: &Client,
        key: &str,
    ) -> Result<Option<kvorum_client::Version>, kvorum_client::Error> {
        let options = ReadOptions { replicas: self.options.replicas, ..ReadOptions::default() };
        Ok(client.head_with(key, options).await?.map(|head| head.version))
    }

    /// Checks the chains of all keys; returns what is broken. Merges all of them into the first tally.
    async fn verify(&self, client: &Client, tallies: &mut [Tally]) -> Option<String> {
        let mut all: BTreeMap<u64, Writes> = BTreeMap::new();
        for tally in tallies.iter_mut() {
            for (number, writes) in std::mem::take(&mut tally.keys) {
                all.entry(number).or_default().add(writes);
            }
        }
        let mut broken = None;
        for (number, writes) in &mut all {
            let key = self.key(*number);
            let last = read_in_time(client, &key).await;
            let last = match last {
                Ok(last) => last.map(|entry| (entry.version.as_str().to_owned(), entry.value)),
                Err(error) => {
                    broken = broken.or(Some(format!("{key}: the last value cannot be read: {error}")));
                    continue;
                }
            };
            let last = last.as_ref().map(|(version, value)| (version.as_str(), &value[..]));
            broken = broken.or_else(|| writes.check(last).err().map(|error| format!("{key}: {error}")));
        }
        if let Some(first) = tallies.first_mut() {
            first.keys = all;
        }
        broken
    }
}

/// Reads a key. A node may have been started a moment ago, or its peers may be away: it is tried again for a while.
pub(super) async fn read_in_time(
    client: &Client,
    key: &str,
) -> Result<Option<kvorum_client::Entry>, kvorum_client::Error> {
    for _ in 1..LAST_READS {
        if let Ok(found) = client.get(key).await {
            return Ok(found);
        }
        tokio::time::sleep(LAST_READ_PAUSE).await;
    }
    client.get(key).await
}

impl Tally {
    pub(super) fn fail(&mut self, error: &kvorum_client::Error) {
        self.failed += 1;
        self.error.get_or_insert_with(|| error.to_string());
    }
}

fn report(tallies: &[Tally], took: Duration, is_added: bool) -> String {
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let succeeded = sum(|tally| tally.succeeded);
    let per_second = |count: u64| float(count) / took.as_secs_f64().max(1e-9);
    let slowest = tallies.iter().map(|tally| tally.succeeded).min().unwrap_or(0);
    let mean = float(succeeded) / float(tallies.len().max(1) as u64);
    let mut text = String::new();
    let clients = tallies.len();
    let failed = sum(|tally| tally.condition_failed);
    let what = if is_added { "Additions" } else { "Compare and set" };
    let _ = writeln!(text, "{what} by {clients} clients for {:.1} s (closed loop)", took.as_secs_f64());
    let _ = writeln!(text, "Successes/s       {:.0}", per_second(succeeded));
    let _ = writeln!(text, "Succeeded         {succeeded}");
    if !is_added {
        let _ = writeln!(text, "Condition failed  {failed} (412: a rival was faster)");
    }
    let _ = writeln!(text, "Unknown           {} (504: may have taken effect)", sum(|tally| tally.unknown));
    let _ = writeln!(text, "Nothing done      {}", sum(|tally| tally.failed));
    let _ = writeln!(
        text,
        "Slowest client    {slowest} successes, {:.2} of the mean of {mean:.0}",
        float(slowest) / mean.max(1e-9)
    );
    if let Some(error) = tallies.iter().find_map(|tally| tally.error.as_ref()) {
        let _ = writeln!(text, "First error       {error}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slowest client stands beside the mean.
    #[test]
    fn fairness_is_told() {
        let of = |succeeded| Tally { succeeded, ..Tally::default() };
        let text = report(&[of(30), of(10)], Duration::from_secs(2), false);
        assert!(text.contains("Successes/s       20\n"), "{text}");
        assert!(text.contains("10 successes, 0.50 of the mean of 20"), "{text}");
    }
}
