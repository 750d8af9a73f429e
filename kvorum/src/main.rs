//! The `kvorum` program: see `kvorum --help`.

use std::process::ExitCode;

/// The allocator: gives memory back after bursts, and keeps threads apart.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    kvorum::cli::run(std::env::args_os())
}
