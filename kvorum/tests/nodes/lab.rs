//! `kvorum lab` with the real program: a tiny lab, its files, and what happens when it is told to stop.
use kvorum_testkit::process::{finish, program};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const TINY: &str = r#"
title = "tiny"
repeats = 2
window = "400ms"
warm-up = "100ms"
profile = ["cpu"]
profile-window = "1s"

[[configuration]]
name = "one"
serve = { durability = "os", threads = 1 }

[[configuration]]
name = "three"
nodes = 3
replicas = "2/3"
serve = { durability = "os", threads = 1 }

[[load]]
name = "PUT"
bench = "put -R100 -c4 -t1 --keys 200 --prefill"

[[load]]
name = "GET"
bench = "get -R100 -c4 -t1 --keys 200 --prefill --verify"
"#;

struct Place(tempfile::TempDir);

impl Place {
    fn new(lab: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("lab.toml"), lab).unwrap();
        std::fs::create_dir(place.path().join("scratch")).unwrap();
        Self(place)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn run(&self) -> Command {
        let mut command = Command::new(program());
        command.arg("lab").arg("run").arg(self.path("lab.toml")).arg("-o").arg(self.path("out"));
        command.arg("--scratch").arg(self.path("scratch")).stdin(Stdio::null());
        command
    }

    /// The number of running processes with this scratch directory in their arguments.
    fn nodes(&self) -> usize {
        let scratch = self.path("scratch").display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
        let nodes = lines.filter(|line| {
            let line = String::from_utf8_lossy(line);
            line.contains(&scratch) && line.contains("\0serve\0")
        });
        nodes.count()
    }

    fn leftovers(&self) -> usize {
        std::fs::read_dir(self.path("scratch")).unwrap().count()
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Goal: a lab makes the measurements of its file, writes the report, leaves no other files, and does nothing
/// twice. A comparison of its folder with itself finds no change, and the exit code follows the condition.
/// Method: two configurations, two loads, two repeats. Latencies and rates depend on the machine and are not
/// checked.
#[test]
fn a_tiny_lab() {
    let place = Place::new(TINY);
    let output = finish(&mut place.run());
    // A machine that is too busy for 100/s makes the exit code 1, and the report is written all the same.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", said(&output));
    assert_eq!((place.nodes(), place.leftovers()), (0, 0), "something was left behind");
    let out = place.path("out");
    let results: serde_json::Value = serde_json::from_str(&read(&out.join("results.json"))).unwrap();
    assert_eq!(results["format"], 1);
    let steps = results["steps"].as_array().unwrap();
    assert_eq!(
        steps.len(),
        8,
        "two repeats of two configurations and the control, the profiles of two: {}",
        said(&output)
    );
    for step in steps {
        assert_eq!(step["error"], serde_json::Value::Null, "{step}");
    }
    let gets =
        steps.iter().flat_map(|step| step["runs"].as_array().unwrap()).filter(|run| run["load"] == "GET");
    for run in gets {
        assert!(run["succeeded"].as_u64().unwrap() > 0, "the store was not filled: {run}");
        assert_eq!(run["wrong_bodies"], 0);
        assert!(run["cpu_micros_per_operation"].is_number());
    }
    let profiles: Vec<_> = steps.iter().flat_map(|step| step["profiles"].as_array().unwrap()).collect();
    assert_eq!(profiles.len(), 4, "two configurations under two loads: {}", said(&output));
    for profile in profiles {
        assert!(out.join(profile["file"].as_str().unwrap()).exists(), "{profile}");
    }
    assert!(out.join("flames/put-cpu-three-since-one.svg").exists(), "no difference of neighbours was drawn");
    let page = read(&out.join("report.html"));
    assert!(page.contains("class=\"line c1\"") && read(&out.join("report.md")).contains("## Figures"));
    assert!(
        !page.contains(&place.path("").display().to_string()),
        "the report names a place of this machine"
    );
    independent_reader(&out.join("histograms/one-put-1.hgrm"));
    in_a_browser(&out.join("report.html"));

    let again = finish(&mut place.run());
    assert_eq!(again.status.code(), output.status.code(), "{}", said(&again));
    let after: serde_json::Value = serde_json::from_str(&read(&out.join("results.json"))).unwrap();
    assert_eq!(after, results, "something was measured again");

    let compare = |words: &[&str]| {
        let mut command = Command::new(program());
        command.args(["lab", "compare"]).arg(&out).arg(&out).args(words);
        finish(&mut command)
    };
    let code = |words: &[&str]| compare(words).status.code().unwrap();
    let same = compare(&["-o", place.path("both").to_str().unwrap()]);
    assert_eq!(same.status.code(), Some(0), "{}", said(&same));
    assert!(said(&same).contains("+0.0") && read(&place.path("both/report.html")).contains("three [B]"));
    assert_eq!(code(&["--fail-if", "rate > 1.2x"]), 0);
    assert_eq!(code(&["--fail-if", "rate >= 1x"]), 1);
    assert_eq!(code(&["--fail-if", "rate >= 1"]), 2);
    assert_eq!(code(&["--fail-if", "SCAN rate >= 1x"]), 2);
}

/// Opens a report in headless Chromium, as a reader would: no script error, no request to anywhere, every plot and flame
/// graph drawn.
fn in_a_browser(report: &Path) {
    if is_missing("in_a_browser", &["node", "chromium"]) {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/report_check.mjs");
    let mut check = Command::new("node");
    let output = finish(check.arg("--experimental-websocket").arg(script).arg(report));
    assert!(output.status.success(), "{}", said(&output));
}

/// Reads a percentile file by its format, independently of the writer: columns by white space, comments by
/// `#`.
fn independent_reader(path: &Path) {
    let text = read(path);
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]);
    let total: u64 =
        text.split("Total count    =").nth(1).unwrap().split(']').next().unwrap().trim().parse().unwrap();
    let mut last = (0.0, 0.0, 0);
    let rows = lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    for row in rows {
        let cells: Vec<&str> = row.split_whitespace().collect();
        let row: (f64, f64, u64) =
            (cells[0].parse().unwrap(), cells[1].parse().unwrap(), cells[2].parse().unwrap());
        assert!(row.0 >= last.0 && row.1 >= last.1 && row.2 >= last.2, "{row:?} behind {last:?}");
        last = row;
    }
    assert!(total > 0 && last.2 == total && (last.1 - 1.0).abs() < 1e-9, "{last:?} of {total}");
}

/// Goal: told to stop in the middle, the lab ends its nodes and removes their data, keeps its measurements
/// and continues there. Method: a signal as soon as the second step has begun.
#[test]
fn an_interrupted_lab() {
    let place = Place::new(&TINY.replace("window = \"400ms\"", "window = \"2s\""));
    let mut lab = place.run().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let results = place.path("out/results.json");
    let deadline = Instant::now() + Duration::from_mins(2);
    while !(results.exists() && place.nodes() > 0) {
        assert!(Instant::now() < deadline, "the second step did not begin");
        assert!(lab.try_wait().unwrap().is_none(), "the lab ended early");
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = Command::new("kill").args(["-TERM", &lab.id().to_string()]).status().unwrap();
    assert!(status.success());
    assert_eq!(lab.wait().unwrap().code(), Some(143));
    assert_eq!((place.nodes(), place.leftovers()), (0, 0), "something was left behind");
    let before: serde_json::Value = serde_json::from_str(&read(&results)).unwrap();
    let kept = before["steps"].as_array().unwrap();
    assert!(!kept.is_empty());
    let more = finish(place.run().args(["--stop-after", "1ms"]));
    assert!(matches!(more.status.code(), Some(0 | 1)), "{}", said(&more));
    let after: serde_json::Value = serde_json::from_str(&read(&results)).unwrap();
    assert_eq!(
        after["steps"].as_array().unwrap()[..kept.len()],
        kept[..],
        "what was kept was measured again"
    );
}

/// Goal: mistakes end with 2 and an error text before anything is started. Method: flags that no node has, a
/// key that no file has, results of another lab.
#[test]
fn mistakes_are_refused() {
    let check = |lab: &str, expect: &str| {
        let place = Place::new(lab);
        let output = finish(&mut place.run());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(expect), "{}", said(&output));
        assert!(!place.path("out/results.json").exists());
    };
    check(&TINY.replace("threads", "treads"), "--treads");
    check(&TINY.replace("\"os\"", "\"sometimes\""), "durability");
    check(&TINY.replace("warm-up", "warmup"), "unknown field `warmup`");
    for arguments in [
        &["lab"][..],
        &["lab", "run"],
        &["lab", "run", "/no/such/file.toml", "--output", "/no/such/folder"],
        &["lab", "run", "ladder", "--no-such-flag"],
        &["lab", "compare", "/no/such/a", "/no/such/b"],
        &["lab", "nothing"],
    ] {
        let output = finish(Command::new(program()).args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    let place = Place::new(TINY);
    std::fs::create_dir(place.path("out")).unwrap();
    std::fs::write(place.path("out/results.json"), "{\"format\": 99}").unwrap();
    let output = finish(&mut place.run());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("format 99"), "{}", said(&output));
}

/// A server that is no kvorum: other paths, and a child process that must not outlive the lab. At 500/s a window takes it
/// many of the kernel's ticks of 10 ms; at 200/s its CPU time was sometimes below one on a fast machine, and shown as 0.
const FOREIGN: &str = r#"
title = "foreign"
repeats = 1
window = "800ms"
warm-up = "100ms"
profile = ["cpu"]
profile-window = "1s"

[[configuration]]
name = "python"
command = ["python3", "SCRIPT", "{port}", "{data}"]
ready = "tcp"
profiler = { cpu = "python3 SCRIPT profile {pid} {file}" }
target = { put = "POST /items/{key}", get = "GET /items/{key}", ok = [200, 201] }

[[load]]
name = "PUT"
bench = "put -R500 -c2 -t1 --keys 50"

[[load]]
name = "GET"
bench = "get -R500 -c2 -t1 --keys 50 --prefill --verify"
"#;

const SERVER: &str = r#"
import subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
if sys.argv[1] == "profile":
    open(sys.argv[3], "w").write("main;serve 7\n")
    sys.exit(0)
subprocess.Popen(["sleep", "600.25"], start_new_session=True)
values = {}
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201)
    def do_GET(self):
        body = values.get(self.path)
        self.answer(404 if body is None else 200, body or b"")
    def log_message(self, *words):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

fn foreign(lab: &str) -> Place {
    let place = Place::new("");
    let script = place.path("server.py");
    std::fs::write(&script, SERVER).unwrap();
    let lab = lab.replace("SCRIPT", &script.display().to_string());
    std::fs::write(place.path("lab.toml"), lab).unwrap();
    place
}

/// The number of running processes whose environment carries the mark of the lab with this pid.
fn marked(lab: u32) -> usize {
    let mark = format!("KVORUM_LAB_RUN={lab}-");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|one| std::fs::read(one.path().join("environ")).ok());
    environments.filter(|one| String::from_utf8_lossy(one).contains(&mark)).count()
}

/// Goal: a server of another language, with its own paths, is loaded, verified and profiled by a command.
/// Method: a small server of Python's library; figures and stacks are in the folder.
#[test]
fn a_foreign_server_is_measured() {
    let place = foreign(FOREIGN);
    let output = finish(&mut place.run());
    let said = String::from_utf8_lossy(&output.stderr);
    let results = std::fs::read_to_string(place.path("out/results.json")).expect(&said);
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    for step in results["steps"].as_array().unwrap() {
        assert!(step["error"].is_null(), "{step}");
        for run in step["runs"].as_array().unwrap() {
            assert_eq!(run["wrong_bodies"], 0, "{run}");
            assert!(run["cpu_micros_per_operation"].as_f64().unwrap() > 0.0, "{run}");
        }
    }
    let stacks = std::fs::read_to_string(place.path("out/profiles/python-get-cpu.collapsed")).expect(&said);
    assert!(stacks.contains(";main;serve 7"), "{stacks}");
    assert!(place.path("out/report.html").is_file());
    assert_eq!(place.leftovers(), 0);
}

/// Goal: nothing outlives a lab that is interrupted or killed outright, not even a child in its own session.
/// Method: SIGINT and SIGKILL while the server runs; then no process has the lab's mark.
#[test]
fn a_foreign_server_ends_with_the_lab() {
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let place = foreign(&FOREIGN.replace("800ms", "60s"));
        let mut lab = place.run().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while marked(lab.id()) < 2 {
            assert!(Instant::now() < deadline, "the server did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&lab), signal).unwrap();
        lab.wait().unwrap();
        while marked(lab.id()) > 0 || place.leftovers() > 0 {
            assert!(Instant::now() < deadline, "{} processes are left", marked(lab.id()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Says why a test does nothing here, where one of `programs` is missing; also if the test passes.
fn is_missing(test: &str, programs: &[&str]) -> bool {
    let is_there = |program: &&str| Command::new(program).arg("--help").output().is_ok();
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(program) = missing {
        println!("SKIPPED: {test}: no {program} here");
    }
    missing.is_some()
}

/// Goal: the example of the documentation works as it stands: the Java reference is built, started, warmed up until it
/// has settled or the bound is reached, loaded, verified, watched and asked to stop. Method: the first step of its lab,
/// with few keys.
#[test]
fn the_example_of_the_documentation() {
    if is_missing("the_example_of_the_documentation", &["java", "javac", "jar"]) {
        return;
    }
    let text = include_str!("../../../docs/lab-foreign.md");
    let lab = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let place = Place::new(&lab.replace("--keys 20000", "--keys 200"));
    let output = finish(place.run().args(["--quick", "--stop-after", "1ms"]));
    let results: serde_json::Value = serde_json::from_str(&read(&place.path("out/results.json"))).unwrap();
    let [step] = &results["steps"].as_array().unwrap()[..] else { panic!("{}", said(&output)) };
    assert!(step["error"].is_null(), "{step}");
    for run in step["runs"].as_array().unwrap() {
        assert!(run["succeeded"].as_u64().unwrap() > 0 && run["wrong_bodies"] == 0, "{run}");
        assert!(run["warm_up"]["is_settled"].is_boolean(), "{run}");
        assert!(run["pauses"].is_array(), "no log of collections was read: {run}");
        let samples = run["samples"].as_array().unwrap();
        assert!(samples.iter().all(|one| one["threads"].as_u64().unwrap() > 10), "{run}");
        assert!(!samples.is_empty(), "{run}");
    }
    assert!(read(&place.path("out/report.md")).contains("GC pauses per minute"));
    assert_eq!(place.leftovers(), 0);
}

/// Goal: a JVM is profiled by async-profiler, or the report says that it could not be. Method: the Java reference under
/// a light load; where the profiler is installed, frames of the reference are in the stacks of CPU time and allocation,
/// and without it there is the note.
#[test]
fn a_jvm_is_profiled() {
    if is_missing("a_jvm_is_profiled", &["java", "javac", "jar", "jcmd"]) {
        return;
    }
    let lab = r#"
title = "jvm"
repeats = 1
window = "400ms"
warm-up = "500ms"
profile-window = "1s"

[[configuration]]
name = "java"
command = ["java", "-Xmx128m", "-jar", "{java-reference}", "async", "{data}", "{urls}"]
profiler = "async-profiler"
stop = "SIGTERM"

[[load]]
name = "PUT"
bench = "put -R400 -c2 -t1 --keys 200 --value-size 16384"
"#;
    let place = Place::new(lab);
    let output = finish(&mut place.run());
    let results: serde_json::Value = serde_json::from_str(&read(&place.path("out/results.json"))).unwrap();
    let steps = results["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["task"] == "profile").unwrap();
    assert!(step["error"].is_null(), "{}: {step}", said(&output));
    let notes = step["notes"].to_string();
    if notes.contains("async-profiler is not on this machine") {
        assert_eq!(step["profiles"].as_array().unwrap().len(), 0);
        println!("SKIPPED: a_jvm_is_profiled: {notes}");
        return;
    }
    for event in ["cpu", "alloc"] {
        let stacks = read(&place.path(&format!("out/profiles/java-put-{event}.collapsed")));
        assert!(stacks.contains("worker-N;") && stacks.contains("reference/Node"), "{event}: {stacks}");
    }
    assert!(place.path("out/profiles/java-put-lock.collapsed").exists());
    assert!(place.path("out/flames/put-alloc-java.svg").exists());
}

const GO_SERVER: &str = r#"
package main

import ("io"; "net/http"; _ "net/http/pprof"; "os"; "runtime"; "sync")

var lock sync.Mutex
var values = map[string][]byte{}

func serve(answer http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	lock.Lock()
	defer lock.Unlock()
	if request.Method == "PUT" {
		values[request.URL.RawQuery] = append([]byte{}, body...)
		return
	}
	answer.Write(values[request.URL.RawQuery])
}

func main() {
	runtime.MemProfileRate = 4096
	runtime.SetMutexProfileFraction(1)
	http.HandleFunc("/kv", serve)
	panic(http.ListenAndServe("127.0.0.1:" + os.Args[1], nil))
}
"#;

/// Goal: a Go program is profiled by its own page. Method: a small server, built here, under a light load; its handler is
/// in the stacks of allocations.
#[test]
fn a_go_server_is_profiled() {
    if is_missing("a_go_server_is_profiled", &["go"]) {
        return;
    }
    let lab = r#"
title = "go"
repeats = 1
window = "400ms"
warm-up = "100ms"
profile-window = "1s"

[[configuration]]
name = "go"
command = ["SERVER", "{port}"]
ready = "tcp"
profiler = "pprof"
target = { put = "PUT /kv?{key}", get = "GET /kv?{key}" }

[[load]]
name = "PUT"
bench = "put -R1000 -c4 -t1 --keys 200 --value-size 4096"
"#;
    let place = Place::new("");
    std::fs::write(place.path("main.go"), GO_SERVER).unwrap();
    let server = place.path("server");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&server).arg(place.path("main.go")).current_dir(place.path(""));
    let done = finish(&mut build);
    assert!(done.status.success(), "{}", said(&done));
    let lab = lab.replace("SERVER", &server.display().to_string());
    std::fs::write(place.path("lab.toml"), lab).unwrap();
    let output = finish(&mut place.run());
    let stacks = std::fs::read_to_string(place.path("out/profiles/go-put-alloc.collapsed"));
    let stacks = stacks.unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    assert!(stacks.contains("main.serve"), "{stacks}");
    for event in ["cpu", "lock"] {
        assert!(place.path(&format!("out/profiles/go-put-{event}.collapsed")).exists(), "{}", said(&output));
    }
}

const PYTHON_SERVER: &str = r#"
import sys, threading, time, tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
values, lock = {}, threading.Lock()
def allocated(seconds):
    """What was allocated in that time and is still held, as collapsed stacks."""
    tracemalloc.start(25)
    time.sleep(seconds)
    taken = tracemalloc.take_snapshot()
    tracemalloc.stop()
    frame = lambda one: f"{one.filename.rsplit('/', 1)[-1]}:{one.lineno}"
    return "".join(f"{';'.join(map(frame, one.traceback))} {one.size}\n" for one in taken.statistics("traceback"))
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            values[self.path] = body
        self.answer(201)
    def do_GET(self):
        if self.path.startswith("/allocated/"):
            return self.answer(200, allocated(int(self.path.rsplit("/", 1)[-1])).encode())
        body = values.get(self.path)
        self.answer(404 if body is None else 200, body or b"")
    def log_message(self, *words):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

/// Goal: a Python server has three flame graphs: CPU and who holds the interpreter's lock by py-spy, allocations by a page of
/// its own. Method: a small server under a light load; its handler is in all stacks.
#[test]
fn a_python_server_is_profiled() {
    if is_missing("a_python_server_is_profiled", &["python3", "py-spy", "curl"]) {
        return;
    }
    let lab = r#"
title = "python"
repeats = 1
window = "400ms"
warm-up = "100ms"
profile-window = "2s"

[[configuration]]
name = "python"
command = ["python3", "SERVER", "{port}"]
ready = "tcp"
target = { put = "PUT /kv/{key}", get = "GET /kv/{key}" }

[configuration.profiler]
cpu = "py-spy record --rate 200 --pid {pid} --duration {seconds} --format raw --output {file}"
lock = "py-spy record --gil --rate 200 --pid {pid} --duration {seconds} --format raw --output {file}"
alloc = "curl --silent --fail --output {file} http://127.0.0.1:{port}/allocated/{seconds}"

[[load]]
name = "PUT"
bench = "put -R200 -c2 -t1 --keys 2000 --value-size 4096"
"#;
    let place = Place::new("");
    let server = place.path("server.py");
    std::fs::write(&server, PYTHON_SERVER).unwrap();
    let lab = lab.replace("SERVER", &server.display().to_string());
    std::fs::write(place.path("lab.toml"), lab).unwrap();
    let output = finish(&mut place.run());
    let results = read(&place.path("out/results.json"));
    if results.contains("Permission denied") || results.contains("Operation not permitted") {
        println!("SKIPPED: a_python_server_is_profiled: another process may not be read here");
        return;
    }
    for (event, frame) in [("cpu", "do_PUT"), ("lock", "server.py"), ("alloc", "server.py:")] {
        let stacks =
            std::fs::read_to_string(place.path(&format!("out/profiles/python-put-{event}.collapsed")));
        let stacks = stacks.unwrap_or_else(|error| panic!("{event}: {error}: {}\n{results}", said(&output)));
        assert!(stacks.contains(frame), "{event}: {stacks}");
        assert!(place.path(&format!("out/flames/put-{event}-python.svg")).exists(), "{event}");
    }
}
