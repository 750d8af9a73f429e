//! Goal: connections are encrypted, nodes and clients are known by certificates, and all of it changes without a failed
//! request. Method: real nodes, real files, and handshakes of strangers.

use crate::peer_secret::{LOAD, failed_elsewhere, hello_of, labelled};
use kvorum_client::Client;
use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::history::{Asked, Class, Moment};
use kvorum_testkit::load::cluster::{Load, settle};
use kvorum_testkit::process::{finish, kvorum, run};
use kvorum_testkit::{PATIENCE, seed, wait_until};
use kvorum_tls::ClientTls;
use kvorum_tls::authority::{Authority, Made, Use};
use kvorum_tls::rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// The files of a cluster's certificates.
pub(crate) struct Files {
    folder: TempDir,
    nodes: Authority,
    clients: Authority,
}

impl Files {
    /// Authorities, and a certificate for each node of `cluster`.
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let folder = TempDir::with_prefix("kvorum-tls-").unwrap();
        let (nodes, clients) = (Authority::new("nodes").unwrap(), Authority::new("clients").unwrap());
        let files = Self { folder, nodes, clients };
        files.write("nodes.pem", files.nodes.cert());
        files.write("clients.pem", files.clients.cert());
        for node in 0..cluster.len() {
            files.issue(&files.nodes, cluster, node);
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    fn put(&self, name: &str, made: &Made) {
        self.write(&format!("{name}.key"), &made.key);
        self.write(&format!("{name}.pem"), &made.cert);
    }

    /// Gives `node` another certificate, by `of`.
    fn issue(&self, of: &Authority, cluster: &Cluster, node: usize) {
        let host = cluster.address(node).ip().to_string();
        self.put(&format!("node-{node}"), &of.issue("node", &[host], Use::Node).unwrap());
    }

    /// How `node` is started with its certificate and these settings.
    pub(crate) fn launch(&self, node: usize, is_secure: bool, more: &[(&str, &str)]) -> Launch {
        let mut arguments = Vec::new();
        let own = [("tls-cert", format!("node-{node}.pem")), ("tls-key", format!("node-{node}.key"))];
        for (flag, name) in own {
            arguments.extend([format!("--{flag}"), self.text(&name)]);
        }
        for (flag, value) in more {
            arguments.extend([format!("--{flag}"), (*value).to_owned()]);
        }
        Launch { arguments, is_secure, ..Launch::default() }
    }

    /// A caller that believes the nodes and shows `made`.
    fn caller(&self, made: Option<&Made>) -> ClientTls {
        if let Some(made) = made {
            self.put("caller", made);
        }
        let (cert, key) = (self.path("caller.pem"), self.path("caller.key"));
        ClientTls::load(&self.path("nodes.pem"), made.map(|_| (cert.as_path(), key.as_path()))).unwrap()
    }
}

/// A cluster of three nodes with certificates, which take connections with and without TLS and call each other with it.
fn cluster(more: &[(&str, &str)]) -> (Cluster, Files) {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    let files = Files::new(&cluster);
    let (nodes, clients) = (files.text("nodes.pem"), files.text("clients.pem"));
    let all = [("tls", "allow"), ("peer-ca", nodes.as_str()), ("tls-client-ca", clients.as_str())];
    for node in 0..3 {
        cluster.set_launch(node, files.launch(node, true, &[&all[..], more].concat()));
    }
    (cluster, files)
}

/// What the node at `address` answers to `request` over TLS; empty if it ends the connection without an answer.
fn ask(address: SocketAddr, caller: &ClientTls, request: &str) -> String {
    let name = ServerName::from(address.ip());
    let connection = ClientConnection::new(caller.config(), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let mut answer = Vec::new();
    if stream.write_all(request.as_bytes()).is_ok() {
        // How the connection ends is not asked here.
        let _ = stream.read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

/// Whether all nodes that have connected to `node` are known by certificates.
fn are_all_certified(cluster: &Cluster, node: usize) -> bool {
    let open =
        |by: &str| labelled(cluster, node, "kvorum_peer_connections_proven", &format!("secret=\"{by}\""));
    open("certificate") > 0 && open("none") == 0
}

/// Goal: only a node's certificate opens the protocol of nodes, and only for that node. Method: the handshake in the name of
/// node 1, without TLS, without a certificate, with a client's, with another node's, and with that of a stranger's authority.
#[test]
fn only_nodes_certificates_open_the_peer_protocol() {
    let (mut cluster, files) = cluster(&[]);
    cluster.start_all();
    for node in 0..3 {
        assert!(are_all_certified(&cluster, node), "node {node}");
    }
    // Of a member with a made-up list of nodes, not of a node that waits to join.
    let hello = hello_of(&cluster, 1).replace("Topology: 0000", "Topology: 1111");
    let hello = format!("GET /v0/peer HTTP/1.1\r\nHost: x\r\n{hello}\r\n");
    let address = cluster.address(0);
    let refused = |reason: &str| labelled(&cluster, 0, "kvorum_peer_handshakes_refused_total", reason);
    let mut plain = kvorum_testkit::http::Connection::open(address, PATIENCE).unwrap();
    plain.send(hello.as_bytes());
    assert_eq!(plain.recv_all()[0].status, 403);
    let host = cluster.address(1).ip().to_string();
    let client = files.clients.issue("c", std::slice::from_ref(&host), Use::Client).unwrap();
    for made in [None, Some(&client)] {
        let answer = ask(address, &files.caller(made), &hello);
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("requires a certificate"), "{answer}");
    }
    assert_eq!(refused("no-certificate"), 3);
    let other = files.nodes.issue("n", &[cluster.address(2).ip().to_string()], Use::Node).unwrap();
    let answer = ask(address, &files.caller(Some(&other)), &hello);
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("which is not its host"), "{answer}");
    assert_eq!(refused("other-certificate"), 1);
    let stranger =
        Authority::new("nodes").unwrap().issue("n", std::slice::from_ref(&host), Use::Node).unwrap();
    assert_eq!(ask(address, &files.caller(Some(&stranger)), &hello), "");
    wait_until("the node says why", || cluster.log(0).contains("a handshake of TLS failed"));
    // Its own certificate passes that check: what refuses it is its hello, which is made up.
    let own = files.nodes.issue("n", &[host], Use::Node).unwrap();
    let answer = ask(address, &files.caller(Some(&own)), &hello);
    assert!(answer.starts_with("HTTP/1.1 409 ") && !answer.contains("certificate"), "{answer}");
    assert_eq!((refused("no-certificate"), refused("other-certificate")), (3, 1));
    assert!(are_all_certified(&cluster, 0));
}

/// Goal: a client's certificate has the rights of the token that names it, on the connection that showed it and nowhere
/// else, and loses them with its token or its authority, while it is connected.
#[test]
fn clients_are_known_by_certificates() {
    let mut cluster = Cluster::new(1, &["--memory-budget", "16MiB"]);
    let files = Files::new(&cluster);
    let tokens = files.text("tokens.toml");
    let token = |words: &[&str]| {
        let words = [&["token", words[0], &tokens], &words[1..]].concat();
        assert_eq!(run(&mut kvorum(&words), b"").status.code(), Some(0), "{words:?}");
    };
    token(&["create", "--id", "reader", "--certificate", "Reader.Example", "--allow", "read:a/"]);
    let clients = files.text("clients.pem");
    let more = [
        ("tls", "allow"),
        ("tls-client-ca", clients.as_str()),
        ("auth", "on"),
        ("token-file", tokens.as_str()),
    ];
    cluster.set_launch(0, files.launch(0, true, &more));
    cluster.start_node(0);
    let address = cluster.address(0);
    let issue = |name: &str| files.clients.issue("c", &[name.to_owned()], Use::Client).unwrap();
    let reader = files.caller(Some(&issue("reader.example")));
    let status = |caller: &ClientTls, key: &str| {
        let answer = ask(address, caller, &get(&format!("/v0/entity?id={key}")));
        answer.get(9..12).unwrap_or_default().to_owned()
    };
    assert_eq!(status(&reader, "a/1"), "404");
    assert_eq!(status(&reader, "b/1"), "403");
    assert_eq!(status(&files.caller(Some(&issue("other.example"))), "a/1"), "401");
    assert_eq!(status(&files.caller(None), "a/1"), "401");
    assert_eq!(cluster.ask(0, "GET", "/v0/entity?id=a/1", None).status, 401);
    // A bad token is not made good by the certificate.
    let bad =
        "GET /v0/entity?id=a/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a.b\r\nConnection: close\r\n\r\n";
    assert!(ask(address, &reader, bad).starts_with("HTTP/1.1 401 "));

    // Open connections: one request each time on the same one.
    let connect = || {
        let name = ServerName::from(address.ip());
        let connection = ClientConnection::new(reader.config(), name).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(connection, stream)
    };
    let again = |stream: &mut StreamOwned<ClientConnection, TcpStream>| {
        stream.write_all(b"GET /v0/entity?id=a/1 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = [0; 4096];
        let count = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[9..count.min(12)]).into_owned()
    };
    let mut open = connect();
    assert_eq!(again(&mut open), "404");
    token(&["revoke", "reader"]);
    wait_until("the revoked certificate is refused", || again(&mut open) == "401");
    token(&["create", "--id", "reader-2", "--certificate", "reader.example", "--allow", "read:a/"]);
    wait_until("the new token is in force", || again(&mut open) == "404");
    files.write("clients.pem", Authority::new("others").unwrap().cert());
    wait_until("the withdrawn authority vouches for nobody", || again(&mut open) == "401");
}

/// Goal: the nodes' authority and certificates are exchanged while clients ask all three nodes, and no request fails;
/// afterwards the old ones open nothing. Bad files change nothing. Method: the steps of the documentation, node by node.
#[test]
fn certificates_rotate_without_a_failed_request() {
    let (mut cluster, files) = cluster(&[]);
    cluster.start_all();
    let old = files.nodes.issue("n", &[cluster.address(1).ip().to_string()], Use::Node).unwrap();
    let addresses = cluster.addresses();
    let next = Authority::new("the next").unwrap();
    let mut history = LOAD.run(&addresses, &[0, 1, 2], seed("certificates rotate"), |_| {
        let taken = |change: &dyn Fn()| {
            let loads = |node| cluster.metric(node, "kvorum_tls_file_loads_total");
            let before: Vec<u64> = (0..3).map(loads).collect();
            change();
            wait_until("all nodes take the files", || (0..3).all(|node| loads(node) > before[node]));
        };
        let counted = |change: &dyn Fn()| {
            let failures = |node| cluster.metric(node, "kvorum_tls_file_failures_total");
            let before: Vec<u64> = (0..3).map(failures).collect();
            change();
            wait_until("the bad files are counted", || (0..3).all(|node| failures(node) > before[node]));
        };
        // Rubbish, half a file, a missing one, and the key of another certificate.
        let whole = files.nodes.cert();
        counted(&|| files.write("nodes.pem", "rubbish"));
        counted(&|| files.write("nodes.pem", &whole[..whole.len() / 2]));
        counted(&|| std::fs::remove_file(files.path("nodes.pem")).unwrap());
        files.write("nodes.pem", whole);
        let keys: Vec<_> = (0..3)
            .map(|node| std::fs::read_to_string(files.path(&format!("node-{node}.key"))).unwrap())
            .collect();
        counted(&|| (0..3).for_each(|node| files.write(&format!("node-{node}.key"), &keys[(node + 1) % 3])));
        (0..3).for_each(|node| files.write(&format!("node-{node}.key"), &keys[node]));
        taken(&|| files.write("nodes.pem", &format!("{}{}", files.nodes.cert(), next.cert())));
        taken(&|| (0..3).for_each(|node| files.issue(&next, &cluster, node)));
        taken(&|| files.write("nodes.pem", next.cert()));
        wait_until("all connections are the new authority's", || {
            (0..3).all(|node| are_all_certified(&cluster, node))
        });
    });
    let failed: Vec<&Asked> = history.asked.iter().filter(|asked| !asked.is_ok()).collect();
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), history.asked.len(), failed.first());
    assert!(history.asked.len() > 1000, "{} requests", history.asked.len());
    assert!(cluster.log(0).contains("the last good ones stay in force"));
    assert_eq!(
        ask(cluster.address(0), &files.caller(Some(&old)), &get("/v0/status")),
        "",
        "the old one opens nothing"
    );
    settle(&cluster, &mut history, "rotation of certificates");
}

/// Goal: a running cluster without TLS gets it, node by node, with its data, and clients of the other nodes notice
/// nothing. At its end no node takes a connection without TLS.
#[test]
fn running_cluster_migrates_to_tls() {
    let mut cluster = Cluster::new(3, &["--memory-budget", "16MiB"]);
    let files = Files::new(&cluster);
    cluster.start_all();
    let nodes = files.text("nodes.pem");
    let addresses = cluster.addresses();
    let load = Load { classes: &[(Class::default(2, 3), 1)], ..LOAD };
    let mut restarting = Vec::new();
    let both = [("tls", "allow"), ("peer-ca", nodes.as_str())];
    let steps = [
        (false, [&both[..], &[("peer-auth", "prefer")]].concat()),
        (true, [&both[..], &[("peer-auth", "prefer")]].concat()),
        (true, both.to_vec()),
    ];
    let mut history = load.run(&addresses, &[0, 1, 2], seed("nodes migrate to TLS"), |_| {
        for (is_secure, more) in &steps {
            for node in 0..3 {
                let begun = Moment::now().mono;
                cluster.terminate(node);
                cluster.set_launch(node, files.launch(node, *is_secure, more));
                cluster.start_node(node);
                cluster.wait_until_connected();
                restarting.push((node, begun, Moment::now().mono));
            }
        }
    });
    let failed = failed_elsewhere(&history, &restarting);
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), history.asked.len(), failed.first());
    assert!((0..3).all(|node| are_all_certified(&cluster, node)));
    settle(&cluster, &mut history, "migration to TLS");
    assert_eq!(cluster.ask(0, "PUT", "/v0/entity?id=kept&replicas=3/3", Some(b"kept")).status, 201);

    for node in 0..3 {
        cluster.terminate(node);
        cluster.set_launch(node, files.launch(node, true, &[("peer-ca", &nodes)]));
        cluster.spawn(node);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let urls = addresses.iter().map(|address| format!("https://{address}"));
    let client = Client::builder().nodes(urls).tls(files.caller(None)).timeout(PATIENCE).build().unwrap();
    let value = runtime.block_on(async {
        // Nodes that start answer 503 until they serve.
        let begun = std::time::Instant::now();
        loop {
            match client.get("kept").await {
                Ok(Some(entry)) => return entry.value,
                other => assert!(begun.elapsed() < PATIENCE, "{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(&value[..], b"kept");
    let refused = cluster.try_ask(0, "GET", "/v0/entity?id=kept", None).unwrap();
    assert!(refused.status == 400 && refused.text().contains("use https://"), "{refused:?}");
}

/// Goal: nothing that a stranger sends before or in a handshake holds a connection for longer than a head may take, and
/// none of it costs the node its service.
#[test]
fn unfinished_handshakes_end() {
    let mut cluster = Cluster::new(1, &["--memory-budget", "16MiB", "--head-timeout", "1s"]);
    let files = Files::new(&cluster);
    cluster.set_launch(0, files.launch(0, true, &[("tls", "allow")]));
    cluster.start_node(0);
    let address = cluster.address(0);
    // A record of a handshake that says it has 512 bytes, and has 3.
    let halves: [&[u8]; 5] =
        [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x16rubbish, and more of it", b"GET / HT"];
    let mut streams: Vec<TcpStream> = halves
        .iter()
        .cycle()
        .take(100)
        .map(|half| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(half).unwrap();
            stream
        })
        .collect();
    let is_open = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).is_err_and(|error| error.kind() != std::io::ErrorKind::ConnectionReset)
    };
    assert!(!streams.iter_mut().any(is_open), "a connection was not ended");
    assert!(ask(address, &files.caller(None), &get("/v0/status")).starts_with("HTTP/1.1 200 "));
    assert_eq!(cluster.ask(0, "GET", "/v0/status", None).status, 200);
}

/// Goal: TLS to a plain port, and calls between nodes that do not believe each other, fail with the reason in the log of
/// both.
#[test]
fn both_sides_say_why_there_is_no_connection() {
    let (mut cluster, files) = cluster(&[]);
    // Node 2 has the certificate of an authority that the others do not know, and believes only that one.
    let other = Authority::new("the other").unwrap();
    files.issue(&other, &cluster, 2);
    files.write("other.pem", other.cert());
    let more = [("tls", "allow"), ("peer-ca", &*files.text("other.pem"))];
    cluster.set_launch(2, files.launch(2, true, &more));
    for node in 0..3 {
        cluster.spawn(node);
    }
    for node in [0, 2] {
        wait_until("the caller says why", || {
            cluster.log(node).contains("invalid peer certificate: UnknownIssuer")
        });
        wait_until("the called node says why", || cluster.log(node).contains("a handshake of TLS failed"));
    }
    // A port without TLS answers a handshake as what it is to it: no HTTP.
    let mut plain = Cluster::new(1, &["--memory-budget", "16MiB"]);
    plain.start_node(0);
    assert_eq!(ask(plain.address(0), &files.caller(None), &get("/v0/status")), "");
    let mut stream = TcpStream::connect(plain.address(0)).unwrap();
    stream.write_all(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
}

/// Goal: large values and ranges come whole over TLS, and a client that does not take them is cut.
#[test]
fn large_answers_come_whole() {
    let mut cluster = Cluster::new(1, &["--memory-budget", "16MiB", "--write-timeout", "2s"]);
    let files = Files::new(&cluster);
    cluster.set_launch(0, files.launch(0, true, &[("tls", "allow")]));
    cluster.start_node(0);
    let value: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    for key in 0..4 {
        let path = format!("/v0/entity?id=large{key}");
        assert_eq!(cluster.ask(0, "PUT", &path, Some(&value)).status, 201);
    }
    let url = format!("https://{}", cluster.address(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::builder().node(&url).tls(files.caller(None)).timeout(PATIENCE).build().unwrap();
    runtime.block_on(async {
        assert_eq!(&client.get("large1").await.unwrap().unwrap().value[..], &value[..]);
        client.put("large9", value.clone()).await.unwrap();
    });
    let range = ask(cluster.address(0), &files.caller(None), &get("/v0/entities?start=large"));
    assert!(range.len() > 5 * value.len() && range.ends_with("0\r\n\r\n"), "{} bytes", range.len());
    // Takes the head and no more.
    let name = ServerName::from(cluster.address(0).ip());
    let connection = ClientConnection::new(files.caller(None).config(), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(cluster.address(0)).unwrap());
    stream.write_all(get("/v0/entities?start=large").as_bytes()).unwrap();
    let mut some = [0; 100];
    assert!(stream.read(&mut some).unwrap() > 0);
    wait_until("the client that takes nothing is cut", || {
        cluster.metric(0, "kvorum_connections_timed_out_total") > 0
    });
}

/// Goal: the lines that `kvorum dev --secure` prints work as they are pasted, and its cluster takes nobody without a token.
#[test]
fn dev_secure_works_as_printed() {
    let base = crate::program::three_ports();
    let folder = TempDir::with_prefix("kvorum-secure-").unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut command = kvorum(&["dev", "--secure", "--base-port", &base.to_string(), "--data-dir"]);
    let mut dev = command.arg(folder.path().join("data")).stderr(log).spawn().unwrap();
    let said = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    wait_until("it serves", || said().contains("Ctrl-C stops all"));
    let program = kvorum_testkit::process::program();
    let line = |label: &str| {
        let said = said();
        let line = said.lines().find_map(|line| line.split_once(label)).unwrap().1.trim().to_owned();
        line.replacen("kvorum get", &format!("{} get", program.display()), 1)
    };
    for (label, expect) in [("a token: ", ""), ("a certificate: ", "hello"), ("the program: ", "hello")] {
        let output = finish(std::process::Command::new("bash").args(["-c", &line(label)]));
        assert!(output.status.success(), "{label}{}: {output:?}", line(label));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expect, "{label}");
    }
    let ca = folder.path().join("data/tls/nodes-ca.pem");
    let url = format!("https://127.0.0.1:{base}");
    let nobody = finish(kvorum(&["get", "greeting", "--url", &url, "--ca"]).arg(&ca));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("a token is needed"), "{nobody:?}");
    let blind = finish(&mut kvorum(&["get", "greeting", "--url", &url]));
    assert_eq!(blind.status.code(), Some(2), "{blind:?}");
    finish(std::process::Command::new("kill").args(["-INT", &dev.id().to_string()]));
    assert!(dev.wait().unwrap().success());
    let is_private = |name: &str| {
        use std::os::unix::fs::MetadataExt as _;
        folder.path().join("data").join(name).metadata().unwrap().mode().trailing_zeros() >= 6
    };
    assert!(
        ["tls/nodes-ca.key", "tls/admin.key", "operator.token", "tokens.toml"].into_iter().all(is_private)
    );
}

/// `kvorum tls` makes what is not there, keeps what is, renews when told, and refuses names that no certificate has.
#[test]
fn tls_init_adds_and_renews() {
    let folder = TempDir::with_prefix("kvorum-tls-init-").unwrap();
    let tls = |words: &[&str], code: i32| {
        let output = run(kvorum(&[&["tls"], words].concat()).current_dir(folder.path()), b"");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let read = |name: &str| std::fs::read_to_string(folder.path().join("tls").join(name)).unwrap();
    let said = tls(&["init", "https://node-a:8080"], 0);
    assert!(
        said.contains("node-node-a-8080.pem (made)") && said.contains("--peer-ca ./tls/nodes-ca.pem"),
        "{said}"
    );
    let (first, ca) = (read("node-node-a-8080.pem"), read("nodes-ca.pem"));
    let said = tls(&["init", "https://node-a:8080", "https://node-b:8080"], 0);
    assert!(
        said.contains("node-node-a-8080.pem (there already)") && said.contains("node-node-b-8080.pem (made)")
    );
    assert_eq!((read("node-node-a-8080.pem"), read("nodes-ca.pem")), (first.clone(), ca.clone()));
    tls(&["init", "--renew", "https://node-a:8080"], 0);
    assert!(read("node-node-a-8080.pem") != first && read("nodes-ca.pem") == ca);
    tls(&["client", "billing.example"], 0);
    assert!(tls(&["client", "billing.example"], 2).contains("there already"));
    for bad in ["https://0.0.0.0:1", "https://[::]:1"] {
        assert!(tls(&["init", bad], 2).contains("stands for all addresses"), "{bad}");
    }
    assert!(tls(&["init", "node-a"], 2).contains("is not a URL"));
    assert!(tls(&["client", "a b"], 2).contains("is no DNS name"));
}

/// Goal: a node that cannot use its certificates does not start, and says why.
#[test]
fn bad_certificates_stop_a_start() {
    let cluster = Cluster::new(1, &[]);
    let files = Files::new(&cluster);
    files.write("node-0.key", &files.clients.issue("c", &["c".to_owned()], Use::Client).unwrap().key);
    let (cert, key) = (files.text("node-0.pem"), files.text("node-0.key"));
    let words = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--data-dir"];
    let output = run(kvorum(&words).arg(files.path("data")), b"");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be used"), "{output:?}");
}
