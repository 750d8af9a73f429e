//! Goal: a profile shows a process's use of processors, memory and locks by the names of its functions.
//! Method: this very process does one known thing of each kind while it profiles itself, with the same
//! allocator and the same replacement of `syscall` as the program.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test"
)]

use kvorum_profiler::alloc::Sampled;
use kvorum_profiler::waits::{self, Since, Wait};
use kvorum_profiler::{Event, Format, Profile, ProfileError, Session, render};
use kvorum_testkit::node::Node;
use kvorum_testkit::process::{kvorum, run};
use std::alloc::System;
use std::hint::black_box;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, mpsc};
use std::thread;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Sampled<System> = Sampled(System);

kvorum_profiler::time_futex_waits!();

/// One profile at a time in this process, as in every other.
static TURN: Mutex<()> = Mutex::new(());

fn profile_of(event: Event, work: impl FnOnce()) -> Profile {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut session = Session::start(event).unwrap();
    work();
    session.drain();
    session.finish()
}

/// The sum of the stacks with `name`: count and value.
fn seen(profile: &Profile, name: &str) -> (u64, u64) {
    let with = profile.entries.iter().filter(|entry| entry.frames.iter().any(|frame| frame.contains(name)));
    with.fold((0, 0), |sum, entry| (sum.0 + entry.count, sum.1 + entry.value))
}

fn text(profile: &Profile) -> String {
    String::from_utf8(render(profile, Format::Collapsed).unwrap()).unwrap()
}

#[inline(never)]
fn known_hot_loop(rounds: u64) -> u64 {
    (0..rounds).fold(1, |sum: u64, round| black_box(sum.wrapping_mul(31) ^ round))
}

#[inline(never)]
fn known_allocation(bytes: usize) -> Vec<u8> {
    black_box(vec![7; bytes])
}

#[inline(never)]
fn known_lock(lock: &Mutex<u64>) {
    *lock.lock().unwrap() += 1;
}

#[inline(never)]
fn known_shared_lock(lock: &RwLock<u64>) -> u64 {
    *lock.read().unwrap()
}

/// A hot loop has most of the samples, under its thread's name; the frames of a thread's start have none.
#[test]
fn hot_loop_is_seen() {
    let profile = profile_of(Event::Cpu, || {
        let hot = thread::Builder::new().name("hot-thread".to_owned());
        let (finished, wait) = mpsc::channel::<()>();
        let thread = hot.spawn(move || {
            black_box(known_hot_loop(1_000_000_000));
            // The thread must still run when its name is read.
            let _ = wait.recv();
        });
        thread::sleep(Duration::from_secs(2));
        // The caller finishes the profile, but the names of threads are read then.
        let _ = (thread.unwrap(), Box::leak(Box::new(finished)));
    });
    let text = text(&profile);
    let (samples, _) = seen(&profile, "known_hot_loop");
    let all: u64 = profile.entries.iter().map(|entry| entry.value).sum();
    assert!(samples > 20 && 2 * samples > all, "{samples} of {all}: {text}");
    assert!(text.contains("hot-thread;"), "{text}");
    assert!(!text.contains("on_tick") && !text.contains("start_thread"), "{text}");
}

/// An allocation shows with its bytes, within the error of samples that are this large; one that is made with
/// the profile off does not.
#[test]
fn allocation_is_seen() {
    drop(known_allocation(100 << 20));
    let profile = profile_of(Event::Alloc, || {
        for _ in 0..64 {
            drop(known_allocation(4 << 20));
        }
    });
    let (count, bytes) = seen(&profile, "known_allocation");
    assert_eq!((count, bytes >> 20), (64, 256), "{}", text(&profile));
    assert!(!text(&profile).contains("__rust_alloc"), "{}", text(&profile));
}

/// Waits for a mutex and for a read-write lock show with the stack that waited; an idle wait of the same process for a
/// channel does not.
#[test]
fn locks_are_seen() {
    let profile = profile_of(Event::Lock, || {
        let (mutex, shared) = (Mutex::new(0), RwLock::new(0));
        let (sender, channel) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let held = (mutex.lock().unwrap(), shared.write().unwrap());
            scope.spawn(|| known_lock(&mutex));
            scope.spawn(|| assert_eq!(known_shared_lock(&shared), 0));
            scope.spawn(move || known_idle_wait(&channel));
            // Long enough for two threads to begin to wait.
            thread::sleep(Duration::from_millis(500));
            sender.send(()).unwrap();
            drop(held);
        });
    });
    for name in ["known_lock", "known_shared_lock"] {
        let (count, micros) = seen(&profile, name);
        assert!(count >= 1 && micros > 0, "{name}: {}", text(&profile));
    }
    assert_eq!(seen(&profile, "known_idle_wait"), (0, 0), "{}", text(&profile));
}

#[inline(never)]
fn known_idle_wait(channel: &mpsc::Receiver<()>) {
    black_box(channel.recv().is_ok());
}

/// A named wait counts while a profile of locks runs, and neither before nor after.
#[test]
fn named_waits_are_seen() {
    let mut before = Since::default();
    profile_of(Event::Alloc, || before = Since::now());
    let profile = profile_of(Event::Lock, || {
        before.end(Wait::PoolQueue);
        waits::note(Wait::PeerReply, Duration::from_millis(3));
        waits::note(Wait::PeerReply, Duration::from_millis(4));
        waits::timed(Wait::StorageSync, || thread::sleep(Duration::from_millis(2)));
    });
    waits::note(Wait::PeerReply, Duration::from_secs(1));
    let after = profile_of(Event::Lock, || {});
    assert_eq!(seen(&profile, "peer: reply"), (2, 7000));
    let (count, micros) = seen(&profile, "storage: sync");
    assert!(count == 1 && micros >= 2000, "{micros}");
    assert_eq!(seen(&profile, "pool: queue"), (0, 0));
    assert!(text(&profile).contains("named waits;peer: reply 7000\n"), "{}", text(&profile));
    assert_eq!(seen(&after, "peer: reply"), (0, 0));
}

/// Goal: signals that interrupt any code do no harm. Method: threads allocate, contend for a lock, unwind and
/// resolve stacks, while others use processor time, until there are some hundred samples.
#[test]
fn signals_interrupt_anything() {
    let is_over = AtomicBool::new(false);
    let lock = Mutex::new(0_u64);
    let profile = profile_of(Event::Cpu, || {
        thread::scope(|scope| {
            for kind in 0..4 {
                let (is_over, lock) = (&is_over, &lock);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        match kind {
                            0 => drop(known_allocation(black_box(1000))),
                            1 => known_lock(lock),
                            2 => drop(std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(1)))),
                            _ => drop(std::backtrace::Backtrace::force_capture()),
                        }
                    }
                });
            }
            thread::sleep(Duration::from_secs(2));
            is_over.store(true, Ordering::Relaxed);
        });
    });
    let samples: u64 = profile.entries.iter().map(|entry| entry.count).sum();
    assert!(samples > 50, "{samples}");
    assert_eq!(seen(&profile, "samples that were lost"), (0, 0));
}

#[test]
fn one_at_a_time() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let first = Session::start(Event::Alloc).unwrap();
    for event in Event::ALL {
        assert!(matches!(Session::start(event), Err(ProfileError::Busy)), "{event:?}");
    }
    drop(first);
    drop(Session::start(Event::Cpu).unwrap());
}

/// Goal: the format's own tool can read the file. Method: `go tool pprof` prints its content. Without Go only
/// the test in `profile/pprof.rs`, which decodes by the format's table, covers the format.
#[test]
fn go_reads_pprof_files() {
    let profile = profile_of(Event::Alloc, || {
        for _ in 0..8 {
            drop(known_allocation(8 << 20));
        }
    });
    let path = std::env::temp_dir().join(format!("kvorum-pprof-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(&render(&profile, Format::Pprof).unwrap()).unwrap();
    let go = Command::new("go")
        .args(["tool", "pprof", "-top", "-cum", "-sample_index=alloc_space"])
        .arg(&path)
        .stderr(Stdio::piped())
        .output();
    let _ = std::fs::remove_file(&path);
    let Ok(go) = go else {
        println!("SKIPPED: go is not here to read the file");
        return;
    };
    let text = String::from_utf8_lossy(&go.stdout);
    assert!(go.status.success(), "{text} {}", String::from_utf8_lossy(&go.stderr));
    assert!(text.contains("64MB") && text.contains("known_allocation"), "{text}");
}

/// Goal: the program itself can be profiled, by HTTP and by its command. Method: a node under writes from a
/// connection; each event and format is requested once, and shows the work of such a node.
#[test]
fn node_is_profiled() {
    let node = Node::start_new(&[]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                assert_eq!(node.put(&format!("id=k{}", number % 100), &vec![7; 100_000]).status, 201);
            }
        });
        // Also when an assertion fails: the scope waits for the writer.
        let _end = kvorum_testkit::RaiseOnDrop(&is_over);
        let ask = |query: &str| node.request("GET", &format!("/debug/profile?seconds=2&{query}"));
        let check = |query: &str, content_type: &str, expect: &[&str]| {
            let answer = ask(query);
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (200, Some(content_type)),
                "{answer:?}"
            );
            let text = String::from_utf8_lossy(&answer.body);
            for expect in expect {
                assert!(text.contains(expect), "{query}: no {expect}: {text}");
            }
        };
        check("event=cpu&format=collapsed", "text/plain; charset=utf-8", &["kvorum:net", "kvorum_server::"]);
        check(
            "event=alloc&format=collapsed",
            "text/plain; charset=utf-8",
            &["kvorum:net", "kvorum_server::http::"],
        );
        let waits =
            ["named waits;commit: queue ", "named waits;storage: commit ", "named waits;commit: answers "];
        check("event=lock&format=collapsed", "text/plain; charset=utf-8", &waits);
        check("event=alloc", "image/svg+xml", &["<svg", "kvorum:commit", "bytes"]);
        let path = node.data_dir().join("profile.gz");
        let flags =
            ["profile", "--event", "cpu", "--seconds", "1", "--format", "pprof", "--url", &node.url()];
        let output = run(kvorum(&flags).arg("-o").arg(&path), b"");
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]), "no gzip");
    });
    let mut refused = kvorum(&["profile", "--seconds", "1", "--url", "ftp://nowhere"]);
    assert_eq!(run(&mut refused, b"").status.code(), Some(2));
    let mut gone = kvorum(&["profile", "--seconds", "1", "--url", "http://127.0.0.1:1"]);
    assert_eq!(run(&mut gone, b"").status.code(), Some(3));
}

/// Goal: a wall-clock profile sees threads that sleep, and signals that wake them do no harm. Method: a thread that waits
/// for a channel and one that sleeps, with their whole time still slept in the end.
#[test]
fn sleeping_threads_are_seen() {
    let profile = profile_of_drained(Event::Wall, || {
        let (sender, channel) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || known_idle_wait(&channel));
            scope.spawn(known_sleep);
            thread::sleep(Duration::from_millis(700));
            drop(sender);
        });
    });
    for name in ["known_idle_wait", "known_sleep"] {
        let (samples, _) = seen(&profile, name);
        assert!(samples >= 3, "{name}: {}", text(&profile));
    }
    assert!(profile.samples >= 6, "{}", profile.samples);
}

#[inline(never)]
fn known_sleep() {
    let begun = std::time::Instant::now();
    thread::sleep(black_box(Duration::from_millis(500)));
    assert!(begun.elapsed() >= Duration::from_millis(500), "a signal has ended the sleep");
}

/// A profile whose session is drained as its own thread would, while `work` runs.
fn profile_of_drained(event: Event, work: impl FnOnce() + Send) -> Profile {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut session = Session::start(event).unwrap();
    thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            session.drain();
            thread::sleep(Duration::from_millis(20));
        }
    });
    session.drain();
    session.finish()
}

/// Goal: a profile of live bytes has what was not freed, wherever it was freed, and not what was. Method: one allocation
/// is kept, others are freed here, in another thread, and by growing.
#[test]
fn live_bytes_are_seen() {
    let mut kept = Vec::new();
    let profile = profile_of(Event::Live, || {
        kept = (0..8).map(|_| known_allocation(4 << 20)).collect::<Vec<_>>();
        for _ in 0..16 {
            drop(known_freed(4 << 20));
        }
        let elsewhere = known_freed(4 << 20);
        thread::spawn(move || drop(elsewhere)).join().unwrap();
        let mut grown = known_freed(4 << 20);
        grown.reserve_exact(64 << 20);
        drop(grown);
    });
    assert_eq!(seen(&profile, "known_allocation").1 >> 20, 32, "{}", text(&profile));
    assert_eq!(seen(&profile, "known_freed"), (0, 0), "{}", text(&profile));
    assert!(profile.samples >= 8);
    drop(kept);
}

#[inline(never)]
fn known_freed(bytes: usize) -> Vec<u8> {
    black_box(vec![9; bytes])
}

/// Goal: one command profiles all nodes, with titles and counts in the files, and two of them can be compared. Method:
/// the nodes of one process, which take one profile at a time, one that is not there, and the files.
#[test]
fn all_nodes_are_profiled_and_compared() {
    let node = Node::start_new(&[]);
    let folder = node.data_dir().join("profiles");
    let urls = format!("{0},{0}", node.url());
    let all = |urls: &str| {
        let flags = ["profile", "--all", "--seconds", "1", "--url", urls];
        let output = run(kvorum(&flags).arg("-o").arg(&folder), b"");
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = all(&urls);
    assert_eq!((code, said.lines().count()), (Some(0), 6), "{said}");
    let host = node.url().trim_start_matches("http://").replace(':', "-");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let index = read("index.md");
    for (event, unit) in [("cpu", "samples"), ("alloc", "sampled allocations"), ("lock", "waits for locks")] {
        let svg = read(&format!("{host}-{event}.svg"));
        assert!(svg.contains(&format!(">{}: ", node.url())) && svg.contains(&format!(" {unit}<")), "{svg}");
        assert!(index.contains(&format!("[{host}-{event}.svg]")), "{index}");
        let _ = read(&format!("{host}-{event}.collapsed"));
    }
    let (code, said) = all(&format!("{},http://127.0.0.1:1", node.url()));
    assert!(code == Some(3) && said.contains("http://127.0.0.1:1: not taken: "), "{said}");
    std::fs::write(folder.join("a.collapsed"), "t;a 50\nt;b 50\n").unwrap();
    std::fs::write(folder.join("b.collapsed"), "t;a 80\nt;b 20\n").unwrap();
    let mut diff = kvorum(&["profile", "diff"]);
    diff.args(
        ["a.collapsed", "b.collapsed", "-o", "diff.svg"]
            .map(|name| if name == "-o" { name.into() } else { folder.join(name).into_os_string() }),
    );
    let output = run(&mut diff, b"");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("+30.00") && said.contains("-30.00"), "{said}");
    assert!(read("diff.svg").contains("a (80 samples, 80.00%; +30.00%)"));
    let refused = run(&mut kvorum(&["profile", "diff", "/no/such/file", "/no/such/file"]), b"");
    assert_eq!(refused.status.code(), Some(2));
}
