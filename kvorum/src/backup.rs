//! `kvorum backup create|list|verify|restore|prune`: backups of a cluster in a folder.

use super::client::{Failure, builder_of, connect, escaped, on_node, switch};
use super::{FAILED, USAGE, complain, complain_of, flag, print, text_of};
use clap::{Arg, ArgGroup, ArgMatches, Command, value_parser};
use kvorum_backup::{
    BackupError, Depth, Folder, Manifest, Plan, Retention, Target, create, create_exact, restore, verify,
};
use kvorum_server::clock::{Clock as _, SystemClock};
use kvorum_server::http::target::decode;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

pub(super) fn command() -> Command {
    let on_folder = |command: Command| {
        command.arg(Arg::new("folder").value_name("DIR").required(true).help("The folder of the backups"))
    };
    let id = || Arg::new("id").value_name("ID").help("The backup, as list shows it [default: the latest]");
    let count =
        |name: &'static str, help: &'static str| flag(name, "N", help).value_parser(value_parser!(u32));
    Command::new("backup")
        .about("Backs up all keys of a cluster, checks and restores backups")
        .long_about(
            "Backs up all keys of a cluster into a folder, and checks, restores, lists and prunes backups there. A backup shows the \
             whole cluster at one instant; it needs the right admin on every node.",
        )
        .subcommand_required(true)
        .subcommand(
            on_node(on_folder(Command::new("create").about("Reads all keys into a new backup; packs that did not change are shared")))
                .arg(
                    flag("rate", "MIB", "The most MiB to read in a second [default: 64]")
                        .value_parser(value_parser!(u64).range(1..=1_000_000)),
                )
                .arg(
                    flag("max-age", "HOURS", "How long the nodes keep the instant for it at most; it costs them disk [default: 6]")
                        .value_parser(value_parser!(u64).range(1..=168)),
                )
                .arg(switch("scan", "Read by quorums, not at one instant: needs only the right scan, and one node's address")),
        )
        .subcommand(on_folder(Command::new("list").about("Prints the backups, the oldest first")))
        .subcommand(
            on_folder(Command::new("verify").about("Checks that a backup is whole")).arg(id()).arg(
                flag("depth", "DEPTH", "files: all there with their length; hashes: and their bytes; records: and all records, counted [default: records]")
                    .value_parser(["files", "hashes", "records"]),
            ),
        )
        .subcommand(
            on_node(on_folder(Command::new("restore").about("Writes a backup into a cluster of any size, and compares")))
                .arg(id())
                .arg(flag("prefix", "PREFIX", "Put this before every key, to restore beside what is there; %XX is a byte"))
                .arg(switch("resume", "Go on with an interrupted restore: leave records that are there already"))
                .arg(switch("new-versions", "Write the records with new versions: needs only the rights write and scan")),
        )
        .subcommand(
            on_folder(Command::new("prune").about("Removes all backups but those to keep, and packs that none needs"))
                .arg(count("keep", "Keep so many of the latest"))
                .arg(count("keep-daily", "Keep the latest one of each of so many days (UTC)"))
                .group(ArgGroup::new("kept").args(["keep", "keep-daily"]).required(true).multiple(true)),
        )
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(format!("cannot start: {error}"), FAILED),
    };
    let Some((name, matches)) = matches.subcommand() else { return ExitCode::from(USAGE) };
    let done = match name {
        "create" => runtime.block_on(run_create(matches)),
        "restore" => runtime.block_on(run_restore(matches)),
        "list" => list(matches),
        "verify" => run_verify(matches),
        _ => prune(matches),
    };
    match done {
        Ok(text) => print(text),
        Err(failure) => complain_of(failure),
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::NoBackup { .. } | BackupError::NotEmpty { .. } | BackupError::KeyTooLong { .. } => {
                Self::Usage(error.to_string())
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(SystemClock::new().wall().0)
}

fn folder_of(matches: &ArgMatches) -> &Path {
    Path::new(text_of(matches, "folder").unwrap_or_default())
}

async fn run_create(matches: &ArgMatches) -> Result<String, Failure> {
    let client = connect(matches)?;
    let folder = Folder::open_alone(folder_of(matches))?;
    let rate = matches.get_one::<u64>("rate").copied().unwrap_or(64);
    let hours = matches.get_one::<u64>("max-age").copied().unwrap_or(6);
    let plan = Plan {
        id: create::id_of(now()),
        bytes_per_second_max: rate << 20,
        age_max: Duration::from_secs(hours * 60 * 60),
    };
    // Two within a second would have one name.
    if folder.ids()?.contains(&plan.id) {
        return Err(Failure::Usage(format!(
            "the backup {} is there already: try again in a second",
            plan.id
        )));
    }
    let created = if matches.get_flag("scan") {
        create(&client, &folder, &plan, now).await?
    } else {
        let builder = builder_of(matches)?;
        create_exact(&client, &|url| builder.clone().node(url).build(), &folder, &plan, now).await?
    };
    let Manifest { id, records, value_bytes, packs, .. } = &created.manifest;
    let (count, new, cuts) = (packs.len(), created.packs_new, created.cuts);
    let cut = if cuts > 0 { format!(", went on {cuts} times after a cut") } else { String::new() };
    let exact = created.manifest.cut.as_ref().map_or_else(String::new, |cut| {
        let (read, all, values) = (cut.partitions_read, cut.partitions, created.values_read);
        format!(", {read} of {all} partitions and {values} values read")
    });
    let away = match &*created.away {
        [] => String::new(),
        away => format!(", without {}", away.join(", ")),
    };
    Ok(format!(
        "backup {id}: {records} records, {value_bytes} bytes of values, {count} packs ({new} new){exact}{cut}{away}\n"
    ))
}

fn list(matches: &ArgMatches) -> Result<String, Failure> {
    let folder = Folder::open(folder_of(matches))?;
    let (mut text, mut damaged) = (String::new(), None);
    for id in folder.ids()? {
        match folder.manifest(Some(&id)) {
            Ok(Manifest { records, value_bytes, packs, begun_millis, ended_millis, .. }) => {
                let seconds = ended_millis.saturating_sub(begun_millis).div_ceil(1000);
                let count = packs.len();
                let _ = writeln!(
                    text,
                    "{id} {records} records {value_bytes} bytes {count} packs taken in {seconds} s"
                );
            }
            Err(error) => {
                let _ = writeln!(text, "{id} damaged");
                damaged = Some(error);
            }
        }
    }
    match damaged {
        None => Ok(text),
        Some(error) => Err(Failure::Failed(format!("{}\n{error}", text.trim_end()))),
    }
}

fn run_verify(matches: &ArgMatches) -> Result<String, Failure> {
    let folder = Folder::open(folder_of(matches))?;
    let manifest = folder.manifest(text_of(matches, "id"))?;
    let depth = match text_of(matches, "depth") {
        Some("files") => Depth::Files,
        Some("hashes") => Depth::Hashes,
        _ => Depth::Records,
    };
    let verified = verify(&folder, &manifest, depth)?;
    let read = match depth {
        Depth::Files => "their lengths are right",
        Depth::Hashes => "their bytes are those that were written",
        Depth::Records => "all their records were read and counted",
    };
    Ok(format!("backup {}: {} packs, {read}\n", manifest.id, verified.packs))
}

async fn run_restore(matches: &ArgMatches) -> Result<String, Failure> {
    let prefix = text_of(matches, "prefix").unwrap_or_default();
    let bad = || Failure::Usage(format!("--prefix {prefix:?}: a % without two hexadecimal digits"));
    let prefix = decode(prefix).ok_or_else(bad)?.to_vec();
    let client = connect(matches)?;
    let folder = Folder::open(folder_of(matches))?;
    let manifest = folder.manifest(text_of(matches, "id"))?;
    let shown = escaped(&prefix);
    let new_versions = matches.get_flag("new-versions");
    let target = Target { prefix, resume: matches.get_flag("resume"), new_versions };
    let restored = restore(&client, &folder, &manifest, &target, now).await?;
    let keeps = if shown.is_empty() && !new_versions { " with their versions" } else { "" };
    let under = if shown.is_empty() { String::new() } else { format!(" under {shown}") };
    Ok(format!(
        "backup {} restored{under}: {} records written, {} were there, {} had expired; all of it{keeps}, read back and compared\n",
        manifest.id, restored.written, restored.there, restored.expired
    ))
}

fn prune(matches: &ArgMatches) -> Result<String, Failure> {
    let folder = Folder::open_alone(folder_of(matches))?;
    let count = |name: &str| matches.get_one::<u32>(name).map_or(0, |count| *count as usize);
    let retention = Retention { latest: count("keep"), daily: count("keep-daily") };
    let kept = retention.kept(&folder.ids()?);
    let pruned = folder.prune(&kept)?;
    Ok(format!("{} backups kept, {} removed, and {} packs\n", kept.len(), pruned.backups, pruned.packs))
}
