//! Early write-back: asks the kernel to begin writing a file's dirty pages, without waiting for them.
//!
//! Unnecessary once fjall syncs a table as it writes it, for then its last sync finds little left to do.
//!
//! One of the exceptions to `unsafe_code = "deny"`: `sync_file_range(2)` has no safe wrapper in a maintained crate. The
//! call takes a descriptor that the borrowed [`File`] keeps open and three integers; it touches no memory of ours.
#![expect(unsafe_code, reason = "sync_file_range(2) has no safe wrapper; see the module text")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Starts writing the whole of `file` to its device. Does not change what is durable.
pub(super) fn begin(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed; no pointer is passed.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A file accepts the call and keeps its bytes; a descriptor that is not a file (a socket) is refused, not ignored.
    #[test]
    fn begins_on_files_only() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        begin(&file).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10_000);
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(begin(&File::from(std::os::fd::OwnedFd::from(socket))).is_err());
    }
}
