//! Goal: the console shows a cluster as it is, and everything on its pages works, with hostile keys and values.
//! Method: three real nodes and a headless Chromium that uses the pages.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::node::Node;
use kvorum_testkit::process::finish;
use std::process::Command;

fn use_console(node: &str, verdict: &str) {
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
    let output = finish(check.args(["--experimental-websocket", script, node, verdict]));
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}

#[test]
fn console_is_used_in_a_browser() {
    let mut cluster = Cluster::new(3, &[]);
    cluster.start_all();
    use_console(&cluster.url(0), "^3 of 3 nodes up");
    cluster.kill9(2);
    use_console(&cluster.url(0), "^2 of 3 nodes up.*have a quorum");
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
