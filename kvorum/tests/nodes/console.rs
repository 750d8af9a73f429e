//! Goal: the console shows a cluster as it is, and everything on its pages works, with hostile keys and values.
//! Method: three real nodes and a headless Chromium that uses the pages.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::disk::Mounted;
use kvorum_testkit::http::Connection;
use kvorum_testkit::node::Node;
use kvorum_testkit::process::{finish, kvorum, run};
use kvorum_testkit::{PATIENCE, skip, wait_until};
use std::process::Command;
use tempfile::TempDir;

fn use_console(node: &str, words: &[&str]) {
    let is_there =
        |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|it| it.status.success());
    for tool in ["node", "chromium"] {
        if !is_there(tool) {
            println!("SKIPPED console: no {tool} here");
            return;
        }
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/console_check.mjs");
    let mut check = Command::new("node");
    let output = finish(check.args(["--experimental-websocket", script, node]).args(words));
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}

#[test]
fn console_is_used_in_a_browser() {
    let mut cluster = Cluster::new(3, &[]);
    cluster.start_all();
    use_console(&cluster.url(0), &["^3 of 3 nodes up"]);
    cluster.kill9(2);
    use_console(&cluster.url(0), &["^2 of 3 nodes up.*have a quorum"]);
}

/// Only the node itself knows that its disk is full: the pages of the others show it, too, as `kvorum status` does.
#[test]
fn console_shows_what_other_nodes_say_of_themselves() {
    let disk = match Mounted::tmpfs(64) {
        Ok(disk) => disk,
        Err(reason) => return skip("console_shows_what_other_nodes_say_of_themselves", &reason),
    };
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    cluster.set_data_dir(1, disk.data_dir());
    cluster.start_all();
    disk.fill(0);
    wait_until("the full disk is noticed", || {
        let _ = cluster.try_ask(1, "PUT", "/v0/entity?id=k&replicas=3/3", Some(&vec![0; 65_536]));
        cluster.ask(1, "GET", "/v0/status", None).text().contains("disk-full")
    });
    let alarm =
        format!("critical disk-full: the disk of {} is full.*Free space on the file system", cluster.url(1));
    use_console(&cluster.url(0), &["--alarm", &alarm, &format!("{}disk-full", cluster.url(1))]);
}

/// Without a token the page shows what anybody may see, says what it lacks, and changes nothing.
#[test]
fn console_without_a_token_is_read_only() {
    let folder = TempDir::with_prefix("kvorum-console-").unwrap();
    let path = folder.path().join("tokens.toml");
    let rights = ["--allow", "read,write,delete,scan", "--allow", "admin,metrics"];
    let mut create = kvorum(&["token", "create"]);
    let created = run(create.arg(&path).args(["--id", "root"]).args(rights), b"");
    assert!(created.status.success(), "{created:?}");
    let token = String::from_utf8(created.stdout).unwrap();
    let node = Node::start_new(&["--auth", "on", "--token-file", path.to_str().unwrap()]);
    use_console(&node.url(), &["--guarded", token.trim_end()]);
}

/// Pages of members, and no others, may read three reports of a node, also with a token.
#[test]
fn pages_of_members_read_reports() {
    let mut cluster = Cluster::new(2, &[]);
    cluster.start_all();
    let (member, node) = (cluster.url(1), cluster.address(0));
    let allowed = |method: &str, path: &str, origin: &str, more: &str| {
        let headers = format!("Connection: close\r\nOrigin: {origin}\r\nSec-Fetch-Site: same-site\r\n{more}");
        let mut connection = Connection::open(node, PATIENCE).unwrap();
        let answer = connection.exchange(method, path, &headers, None).unwrap();
        (answer.status, answer.header("access-control-allow-origin").map(str::to_owned))
    };
    let of_member = Some(member.clone());
    assert_eq!(allowed("GET", "/v0/status", &member, ""), (200, of_member.clone()));
    assert_eq!(allowed("GET", "/v0/history", &member, ""), (200, of_member.clone()));
    let profile = "/debug/profile?event=alloc&seconds=1&format=collapsed";
    assert_eq!(allowed("GET", profile, &member, ""), (200, of_member.clone()));
    let asks = "Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: authorization\r\n";
    assert_eq!(allowed("OPTIONS", profile, &member, asks), (200, of_member));
    for (method, path, origin, status) in [
        ("GET", "/v0/status", "http://evil.example", 200),
        ("GET", profile, "http://evil.example", 403),
        ("OPTIONS", profile, "http://evil.example", 405),
        ("OPTIONS", "/admin/workers", &*member, 405),
        ("GET", "/admin/workers", &*member, 403),
        ("POST", "/admin/workers/scrub/pause", &*member, 403),
        ("GET", "/v0/entities?start=a", &*member, 200),
        ("GET", "/metrics", &*member, 200),
    ] {
        let asks = if method == "OPTIONS" { asks } else { "" };
        assert_eq!(allowed(method, path, origin, asks), (status, None), "{method} {path} {origin}");
    }
}

/// The settings are shown with their sources, to those who administer the node.
#[test]
fn settings_are_shown_with_their_source() {
    let node = Node::start_new(&["--threads", "2"]);
    let answer = node.request_with("GET", "/admin/settings", "Accept: application/json\r\n");
    let shown: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    let rows = shown["settings"].as_array().unwrap();
    let threads = rows.iter().find(|row| row["name"] == "threads").unwrap();
    assert_eq!((&threads["value"], &threads["origin"]), (&"2".into(), &"flag --threads".into()));
    assert!(node.request("GET", "/admin/settings").text().contains("threads = \"2\""));
    assert_eq!(node.request("GET", "/admin/settings?x=1").status, 400);
    assert_eq!(node.request("PUT", "/admin/settings").status, 405);
}

/// A browser is sent to the console; everybody else is told of it. Its files need no token, and their policy lets them
/// load nothing else.
#[test]
fn console_is_found_and_guarded() {
    let node = Node::start_new(&[]);
    for method in ["GET", "HEAD"] {
        let browser = node.request_with(method, "/", "Accept: text/html,*/*;q=0.8\r\n");
        assert_eq!((browser.status, browser.header("location")), (302, Some("/console")), "{browser:?}");
        let other = node.request(method, "/");
        assert_eq!((other.status, other.header("location")), (200, None), "{other:?}");
    }
    assert!(node.request("GET", "/").text().contains("/console"));
    for (path, kind) in [
        ("/console", "text/html; charset=utf-8"),
        ("/console/console.js", "text/javascript; charset=utf-8"),
        ("/console/profile.js", "text/javascript; charset=utf-8"),
        ("/console/console.css", "text/css; charset=utf-8"),
    ] {
        let file = node.request("GET", path);
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(node.request("GET", &format!("{path}?x=1")).status, 400);
        assert_eq!(node.request("PUT", path).status, 405);
    }
}
