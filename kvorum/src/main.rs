//! The `kvorum` program: see `kvorum --help`.

use kvorum_profiler::alloc::Sampled;
use std::process::ExitCode;

/// The allocator: returns memory after bursts, and keeps threads separate. Its allocations can be profiled.
#[global_allocator]
static ALLOCATOR: Sampled<tikv_jemallocator::Jemalloc> = Sampled(tikv_jemallocator::Jemalloc);

kvorum_profiler::time_futex_waits!();

fn main() -> ExitCode {
    kvorum::cli::run(std::env::args_os())
}
