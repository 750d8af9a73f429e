//! async-profiler in running JVMs: its library is loaded, started and stopped by `jcmd PID JVMTI.agent_load`.
//!
//! Stacks are cleaned for comparisons: names of threads lose their numbers, and names of classes that the JVM makes
//! at run time lose their addresses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::{Asked, read, run};
use crate::error::LabError;
use crate::lab::profile::{Event, Stacks};
use crate::lab::target::find_program;

/// The line that fetches the library into the local Maven folder.
pub const FETCH: &str = "mvn dependency:get -Dartifact=tools.profiler:async-profiler:4.5";

/// The library within its jar; empty on other machines, where a path is needed.
const IN_JAR: &str = if cfg!(target_arch = "x86_64") {
    "linux-x64/libasyncProfiler.so"
} else if cfg!(target_arch = "aarch64") {
    "linux-arm64/libasyncProfiler.so"
} else {
    ""
};

/// Between two samples of CPU time: at the rates of a lab the usual 10 ms would give too few.
const INTERVAL: &str = "1ms";
/// Between two samples of allocated bytes, on average: with the usual 512 KiB a window of a few seconds has a handful.
const INTERVAL_BYTES: u32 = 16_384;

/// The library that the machine has, or the jar with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Library {
    /// The library itself.
    File(PathBuf),
    /// The Maven artifact, which holds it.
    Jar(PathBuf),
}

/// Finds the library: `path`, or the newest artifact in the local Maven folder.
///
/// # Errors
/// [`LabError::Usage`] with the line that fetches it.
pub fn find(path: Option<&Path>) -> Result<Library, LabError> {
    if let Some(path) = path {
        if !path.is_file() {
            return Err(LabError::Usage(format!("async-profiler: {} is no file", path.display())));
        }
        let is_jar = path.extension().is_some_and(|extension| extension == "jar");
        return Ok(if is_jar { Library::Jar(path.into()) } else { Library::File(path.into()) });
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let folder = home.join(".m2/repository/tools/profiler/async-profiler");
    let versions = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let jars = versions.flat_map(|version| std::fs::read_dir(version.path()).into_iter().flatten().flatten());
    let newest = jars
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jar"))
        .max();
    match newest.filter(|_| !IN_JAR.is_empty()) {
        Some(jar) => Ok(Library::Jar(jar)),
        None => Err(LabError::Usage(format!(
            "async-profiler is not on this machine: fetch it with `{FETCH}`, or name its library with \
             --async-profiler, or set profiler = \"none\""
        ))),
    }
}

impl Library {
    /// The library as a file, in `scratch` if it comes from a jar.
    fn file(&self, scratch: &Path) -> Result<PathBuf, LabError> {
        let jar = match self {
            Self::File(path) => return absolute(path),
            Self::Jar(jar) => absolute(jar)?,
        };
        let path = scratch.join(IN_JAR);
        if !path.is_file() {
            let mut command = Command::new("jar");
            command.arg("xf").arg(jar).arg(IN_JAR).current_dir(scratch);
            run(command, Duration::ZERO)?;
        }
        Ok(path)
    }
}

fn absolute(path: &Path) -> Result<PathBuf, LabError> {
    std::path::absolute(path).map_err(LabError::machine(format!("find {}", path.display())))
}

/// Takes one profile of every JVM of the cluster at once.
pub(super) fn take(asked: &Asked<'_>) -> Result<(Vec<Stacks>, Option<String>), LabError> {
    let library = &find(asked.library)?.file(asked.scratch)?;
    let machines: Vec<u32> = asked.cluster.processes().into_iter().filter(|&pid| is_jvm(pid)).collect();
    if machines.is_empty() {
        return Err(LabError::Subject("async-profiler: none of the processes is a JVM".into()));
    }
    let note = Mutex::new(None);
    let taken = thread::scope(|scope| {
        let note = &note;
        let running: Vec<_> =
            machines.iter().map(|&pid| scope.spawn(move || take_one(pid, library, asked, note))).collect();
        let taken = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(LabError::Subject("a profiling thread panicked".into())))
        });
        taken.collect::<Result<Vec<_>, _>>()
    })?;
    Ok((taken, note.into_inner().unwrap_or_default()))
}

fn take_one(
    pid: u32,
    library: &Path,
    asked: &Asked<'_>,
    note: &Mutex<Option<String>>,
) -> Result<Stacks, LabError> {
    let file = asked.file(pid);
    match asked.event {
        Event::Cpu => {
            let start = |engine: &str| format!("start,event={engine},interval={INTERVAL},threads");
            if let Err(LabError::Subject(why)) = load(pid, library, &start("cpu")) {
                // Containers often forbid performance events; timers of the threads need no permission.
                load(pid, library, &start("ctimer"))?;
                let text = format!("async-profiler: cpu without kernel frames, by timers: {why}");
                if let Ok(mut note) = note.lock() {
                    *note = Some(text);
                }
            }
        }
        Event::Alloc => load(pid, library, &format!("start,alloc={INTERVAL_BYTES},threads"))?,
        Event::Lock => load(pid, library, "start,event=lock,threads")?,
    }
    thread::sleep(asked.window);
    // Samples of CPU time are counted; bytes and nanoseconds are added up.
    let total = if asked.event == Event::Cpu { "" } else { ",total" };
    load(pid, library, &format!("stop,collapsed{total},file={}", file.display()))?;
    cleaned(&read(&file)?, asked.event)
}

/// Gives `options` to the library in the JVM `pid`.
fn load(pid: u32, library: &Path, options: &str) -> Result<(), LabError> {
    let program = find_program("jcmd").unwrap_or_else(|| "jcmd".into());
    let mut command = Command::new(program);
    // The quotes are for jcmd, which splits its arguments at commas.
    command.arg(pid.to_string()).arg("JVMTI.agent_load").arg(library).arg(format!("\"{options}\""));
    let said = run(command, Duration::ZERO)?;
    if said.contains("return code: 0") {
        return Ok(());
    }
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(LabError::Subject(format!("async-profiler refused {options}: {said}")))
}

fn is_jvm(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains("/libjvm.so")
}

/// The stacks of `text` with names that are the same in every run, in the units of `event`.
fn cleaned(text: &str, event: Event) -> Result<Stacks, LabError> {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let bad = || LabError::Subject(format!("async-profiler wrote the line {line:?}"));
        let (frames, value) = line.rsplit_once(' ').ok_or_else(bad)?;
        let value: u64 = value.parse().map_err(|_| bad())?;
        let value = if event == Event::Lock { value / 1_000 } else { value };
        let (thread, rest) = frames.split_once(';').unwrap_or((frames, ""));
        let mut names = vec![thread_name(thread)];
        names.extend(rest.split(';').filter(|name| !name.is_empty()).map(frame_name));
        lines.extend([names.join(";").as_str(), " ", value.to_string().as_str(), "\n"]);
    }
    Stacks::read(&lines)
}

/// `[worker-3 tid=77]` becomes `worker-N`: pools of several nodes in one process stay comparable.
fn thread_name(frame: &str) -> String {
    let name = frame.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(frame);
    let name = name.rsplit_once(" tid=").map_or(name, |(name, _)| name);
    // The JVM's two compilers differ only in this number.
    let compiler = ["C1 ", "C2 "].into_iter().find(|compiler| name.starts_with(compiler)).unwrap_or_default();
    let name = name.strip_prefix(compiler).unwrap_or(name);
    let mut out = compiler.to_owned();
    let mut is_number = false;
    for letter in name.chars() {
        if !letter.is_ascii_digit() {
            out.push(letter);
        } else if !is_number {
            out.push('N');
        }
        is_number = letter.is_ascii_digit();
    }
    out
}

/// `A$$Lambda$66.0x00007fbc1c003898.handle` becomes `A$$Lambda.handle`, and a library's path its file's name: that of a library that
/// was unpacked for this run is another in the next.
fn frame_name(frame: &str) -> String {
    if frame.starts_with('/') {
        let file = frame.rsplit('/').next().unwrap_or(frame);
        return file.trim_end_matches(" (deleted)").to_owned();
    }
    let Some((before, rest)) = frame.split_once(".0x") else { return frame.to_owned() };
    let after = rest.trim_start_matches(|letter: char| letter.is_ascii_hexdigit());
    let before = before.trim_end_matches(|letter: char| letter.is_ascii_digit());
    format!("{}{after}", before.trim_end_matches('$'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: two runs of one program have the same names. Method: threads and classes with numbers and addresses.
    #[test]
    fn names_are_the_same_in_every_run() {
        let text = "[HttpClient-2-Worker-13 tid=77];a/B.run;a/B$$Lambda$66.0x00007fbc1c003898.handle 2500\n\
                    [HttpClient-1-Worker-4 tid=78];a/B.run;a/B$$Lambda.0x00007f00.handle 4000\n\
                    [C2 CompilerThread0 tid=3] 1000\n";
        let expect = "C2 CompilerThreadN 1\nHttpClient-N-Worker-N;a/B.run;a/B$$Lambda.handle 6\n";
        assert_eq!(cleaned(text, Event::Lock).unwrap().text(), expect);
        assert!(cleaned(text, Event::Alloc).unwrap().text().ends_with(" 6500\n"));
        assert!(cleaned("a;b\n", Event::Cpu).is_err());
    }

    /// Goal: a library that was unpacked for one run has the same name in the next. Method: one under two paths.
    #[test]
    fn libraries_are_named_by_their_files() {
        assert_eq!(frame_name("/var/tmp/.tmpA1/x64/libp.so (deleted)"), "libp.so");
        assert_eq!(frame_name("/usr/lib/libc.so.6"), "libc.so.6");
    }

    /// Goal: a library that is not there is reported with a way to get it. Method: a path to nothing.
    #[test]
    fn a_missing_library_is_reported() {
        let error = find(Some(Path::new("/no/such/lib.so"))).unwrap_err();
        assert!(matches!(error, LabError::Usage(_)), "{error}");
    }
}
