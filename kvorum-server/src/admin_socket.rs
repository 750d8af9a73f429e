//! The Unix socket for administration on the node's own machine.

use rustix::fs::{Mode, chmod};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket's file, which is removed when this is dropped. It must be dropped before its listener: until then, the system
/// gives the file's inode to no other file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The device and inode: another process may have put its own socket there since.
    identity: (u64, u64),
}

/// Listens on a socket at `path`, which only this process's user can open. The file of a socket on which nobody listens any
/// more is replaced.
///
/// # Errors
/// When the system refuses it, when another process listens there, or when `path` is another file, which is left as it is.
pub(crate) fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    match path.symlink_metadata() {
        Ok(old) if !old.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is a file that is no socket"));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it"));
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The program's umask keeps others out until the mode is set.
    let listener = UnixListener::bind(path)?;
    let metadata = path.symlink_metadata()?;
    let file = SocketFile { path: path.to_path_buf(), identity: (metadata.dev(), metadata.ino()) };
    chmod(path, Mode::RUSR | Mode::WUSR)?;
    listener.set_nonblocking(true)?;
    Ok((listener, file))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let identity = self.path.symlink_metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        if identity.is_ok_and(|identity| identity == self.identity) {
            // A file that stays is replaced at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests look at the files themselves")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// The file is private and goes with its listener; what nobody listens on is replaced, anything else is left.
    #[test]
    fn socket_replaces_only_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin");
        let (listener, file) = listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // As after a crash: the file stays, and nobody listens.
        std::mem::forget(file);
        drop(listener);
        let (second, second_file) = listen(&path).unwrap();
        // Removed by hand, and taken by another process.
        std::fs::remove_file(&path).unwrap();
        let (third, third_file) = listen(&path).unwrap();
        drop(second_file);
        assert!(path.exists());
        drop(third_file);
        assert!(!path.exists());
        drop((second, third));
        std::fs::write(&path, "notes").unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "notes");
    }
}
