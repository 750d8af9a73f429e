//! The `kvorum` program: see `kvorum --help`.

use kvorum::profile::alloc::Sampled;
use std::process::ExitCode;

/// The allocator: gives memory back after bursts, and keeps threads apart. What it gives out can be profiled.
#[global_allocator]
static ALLOCATOR: Sampled<tikv_jemallocator::Jemalloc> = Sampled(tikv_jemallocator::Jemalloc);

kvorum::time_futex_waits!();

fn main() -> ExitCode {
    kvorum::cli::run(std::env::args_os())
}
