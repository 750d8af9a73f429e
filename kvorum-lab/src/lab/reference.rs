//! The Java reference that a lab file may name as `{java-reference}`: its sources are part of this program, and a JDK
//! of this machine makes the jar, beside the results. Nothing is fetched.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::file::LabFile;
use super::target::find_program;
use crate::error::LabError;
use crate::suite::process::output_within;

/// The placeholder in a command.
pub const PLACEHOLDER: &str = "java-reference";

/// The jar's name in the result folder.
pub const JAR: &str = "java-reference.jar";

/// How long a program of the JDK may take: seconds, on a machine that is not overloaded.
const BUILD_MAX: Duration = Duration::from_mins(2);

macro_rules! sources {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../fixtures/java-reference/reference/", $name)))),*]
    };
}

/// Names and texts of the sources, without the fixture's own test.
const SOURCES: [(&str, &str); 8] = sources!(
    "Entry.java",
    "Main.java",
    "Node.java",
    "Peers.java",
    "Request.java",
    "Stage.java",
    "Store.java",
    "Tally.java"
);

/// Makes the jar in `folder` if a command of `file` names it, and tells the configurations where it is.
///
/// # Errors
/// [`LabError::Usage`] if this machine has no JDK of version 17 or later, [`LabError::Machine`] if files cannot be
/// written.
pub fn provide(file: &mut LabFile, folder: &Path) -> Result<(), LabError> {
    let placeholder = format!("{{{PLACEHOLDER}}}");
    let mut jar: Option<PathBuf> = None;
    for configuration in &mut file.configurations {
        if configuration.command.iter().flatten().any(|word| word.contains(&placeholder)) {
            if jar.is_none() {
                jar = Some(build(folder)?);
            }
            configuration.reference.clone_from(&jar);
        }
    }
    Ok(())
}

/// Compiles the sources; returns the absolute path of the jar.
fn build(folder: &Path) -> Result<PathBuf, LabError> {
    for program in ["java", "javac", "jar"] {
        if find_program(program).is_none() {
            let why = format!("{{{PLACEHOLDER}}}: a JDK of version 17 or later is needed: no {program} here");
            return Err(LabError::Usage(why));
        }
    }
    std::fs::create_dir_all(folder).map_err(LabError::machine(format!("make {}", folder.display())))?;
    let folder =
        std::path::absolute(folder).map_err(LabError::machine(format!("find {}", folder.display())))?;
    let scratch =
        tempfile::tempdir_in(&folder).map_err(LabError::machine("create a directory for the compiler"))?;
    let mut compiler = Command::new("javac");
    compiler.args(["--release", "17", "-g", "-d", "classes"]).current_dir(&scratch);
    for (name, text) in SOURCES {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).map_err(LabError::machine(format!("write {}", path.display())))?;
        compiler.arg(name);
    }
    let jar = folder.join(JAR);
    let mut packer = Command::new("jar");
    packer.args(["--create", "--main-class", "reference.Main", "--file"]).arg(&jar);
    packer.args(["-C", "classes", "."]).current_dir(&scratch);
    for command in [compiler, packer] {
        let shown = command.get_program().display().to_string();
        let output = output_within(command, BUILD_MAX)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(LabError::Usage(format!("{{{PLACEHOLDER}}}: {shown}: {}: {said}", output.status)));
        }
    }
    Ok(jar)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the program carries every source of the fixture but its test. Method: the files in the tree.
    #[test]
    fn every_source_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/java-reference/reference");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "Smoke.java")
            .collect();
        names.sort();
        assert_eq!(names, SOURCES.map(|(name, _)| name));
    }
}
