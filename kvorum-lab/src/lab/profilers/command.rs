//! Profiles by a command of the lab file, one for each process.

use std::process::Command;
use std::thread;

use super::{Asked, read, run};
use crate::error::LabError;
use crate::lab::profile::Stacks;

/// The placeholders of a profiler's command.
pub(super) const PLACEHOLDERS: [&str; 4] = ["pid", "seconds", "file", "port"];

/// Runs `line` for every process at once.
pub(super) fn take(line: &str, asked: &Asked<'_>) -> Result<Vec<Stacks>, LabError> {
    let ports = asked.cluster.ports_of_processes();
    thread::scope(|scope| {
        let running: Vec<_> = ports
            .into_iter()
            .map(|(pid, port)| scope.spawn(move || take_one(line, asked, pid, port)))
            .collect();
        let taken = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(LabError::Subject("a profiling thread panicked".into())))
        });
        taken.collect()
    })
}

fn take_one(line: &str, asked: &Asked<'_>, pid: u32, port: u16) -> Result<Stacks, LabError> {
    let file = asked.file(pid);
    let mut words = line.split_whitespace().map(|word| {
        word.replace("{pid}", &pid.to_string())
            .replace("{seconds}", &asked.window.as_secs().to_string())
            .replace("{file}", &file.display().to_string())
            .replace("{port}", &port.to_string())
    });
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    run(command, asked.window)?;
    // Stacks of such tools begin with a function; the report expects a thread there.
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    with_thread(&read(&file)?, name.trim())
}

/// The stacks of `text`, each below a frame `name`.
fn with_thread(text: &str, name: &str) -> Result<Stacks, LabError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    Stacks::read(&lines.map(|line| format!("{name};{line}\n")).collect::<Vec<_>>().concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: stacks have a thread. Method: two lines.
    #[test]
    fn stacks_get_a_thread() {
        let stacks = with_thread("main (a.py:1);put (a.py:2) 3\n\nmain (a.py:1) 1\n", "python3").unwrap();
        assert_eq!(stacks.text(), "python3;main (a.py:1) 1\npython3;main (a.py:1);put (a.py:2) 3\n");
        assert!(with_thread("no number\n", "x").is_err());
    }
}
