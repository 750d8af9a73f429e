//! Tests of certificates that hold together, that change, and of handshakes.

use super::*;
use kvorum_tls::ClientTls;
use kvorum_tls::authority::{Authority, Made, Use};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

/// Two authorities and a folder for what they sign.
struct Place {
    folder: TempDir,
    nodes: Authority,
    clients: Authority,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (nodes, clients) = (Authority::new("nodes").unwrap(), Authority::new("clients").unwrap());
        let place = Self { folder, nodes, clients };
        place.show(&place.nodes.issue("a", &["node-a".to_owned()], Use::Node).unwrap());
        place.write("nodes.pem", place.nodes.cert());
        place.write("clients.pem", place.clients.cert());
        place
    }

    #[expect(clippy::disallowed_methods, reason = "the tests write the files themselves")]
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes `made` the node's.
    fn show(&self, made: &Made) {
        self.write("cert.pem", &made.cert);
        self.write("key.pem", &made.key);
    }

    fn files(&self, client_ca: Option<&str>, peer_ca: Option<&str>) -> TlsFiles {
        let path = |name: Option<&str>| name.map(|name| self.path(name));
        let (cert, key) = (self.path("cert.pem"), self.path("key.pem"));
        TlsFiles { cert, key, client_ca: path(client_ca), peer_ca: path(peer_ca) }
    }

    fn open(&self, client_ca: Option<&str>, peer_ca: Option<&str>) -> Result<Tls, TlsError> {
        Tls::open(self.files(client_ca, peer_ca), "node-a", TlsMode::Require).map(|(tls, _)| tls)
    }

    fn whole(&self) -> Tls {
        self.open(Some("clients.pem"), Some("nodes.pem")).unwrap()
    }

    /// A client that believes the nodes and shows `made`.
    fn client(&self, made: Option<&Made>) -> ClientTls {
        if let Some(made) = made {
            self.write("own.pem", &made.cert);
            self.write("own-key.pem", &made.key);
        }
        let (cert, key) = (self.path("own.pem"), self.path("own-key.pem"));
        let identity = made.map(|_| (cert.as_path(), key.as_path()));
        ClientTls::load(&self.path("nodes.pem"), identity).unwrap()
    }
}

fn a_minute_ago() -> std::time::SystemTime {
    std::time::UNIX_EPOCH + Duration::from_millis(now().0) - Duration::from_mins(1)
}

fn now() -> UnixMillis {
    UnixMillis(u64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap())
}

/// Lets `client` call the node as `host`. Returns what the node knows of it, and whether it could send anything.
async fn call(tls: &Tls, client: &ClientTls, host: &str) -> Option<(Option<Shown>, bool)> {
    let (ours, theirs) = duplex(64 << 10);
    let calling = async {
        let mut stream = client.connect(host, theirs).await.ok()?;
        stream.write_all(b"hello").await.ok()?;
        stream.flush().await.ok()?;
        // Under TLS 1.3 a client learns by its first read that it was refused.
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).await.ok()?;
        Some(())
    };
    let called = async {
        let Some(Arrived::Tls(stream)) = arrive(ours).await else { panic!("the call is no handshake") };
        let Handshake { mut stream, shown } = tls.shake_hands(stream).await.ok()?;
        let mut read = [0; 5];
        stream.read_exact(&mut read).await.ok()?;
        stream.write_all(b"ok").await.ok()?;
        stream.flush().await.ok()?;
        Some((shown, &read == b"hello"))
    };
    let (sent, heard) = tokio::join!(calling, called);
    heard.filter(|_| sent.is_some())
}

/// Goal: what does not hold together is refused before it is used, each with its reason.
#[test]
fn what_does_not_hold_together_is_refused() {
    let place = Place::new();
    let refused = |client_ca: Option<&str>, peer_ca: Option<&str>, expect: &str| {
        let error = place.open(client_ca, peer_ca).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    assert!(place.open(None, None).is_ok());
    refused(Some("nodes.pem"), Some("nodes.pem"), "an authority in common");
    let both = format!("{}{}", place.nodes.cert(), place.clients.cert());
    place.write("both.pem", &both);
    refused(Some("clients.pem"), Some("both.pem"), "an authority in common");
    refused(Some("nowhere.pem"), None, "nowhere.pem");
    refused(None, Some("key.pem"), "no certificate");
    // Another authority's, another host's, one that is only a client's, and those whose time is over or has not come.
    refused(None, Some("clients.pem"), "refuse this node's certificate");
    place.show(&place.nodes.issue("b", &["node-b".to_owned()], Use::Node).unwrap());
    refused(None, Some("nodes.pem"), "refuse this node's certificate");
    place.show(&place.nodes.issue("a", &["node-a".to_owned()], Use::Client).unwrap());
    refused(None, Some("nodes.pem"), "refuse this node's certificate");
    place.show(&place.nodes.issue_until(a_minute_ago(), "a", &["node-a".to_owned()], Use::Node).unwrap());
    refused(None, Some("nodes.pem"), "refuse this node's certificate");
    let good = place.nodes.issue("a", &["node-a".to_owned()], Use::Node).unwrap();
    let other = place.nodes.issue("a", &["node-a".to_owned()], Use::Node).unwrap();
    place.show(&Made { cert: good.cert.clone(), key: other.key });
    refused(None, None, "cannot be used");
    place.show(&good);
    assert!(place.open(Some("clients.pem"), Some("nodes.pem")).is_ok());
}

/// Goal: who has shown nothing is nobody, who has shown something is what its authority says, and who shows what nobody
/// vouches for has no connection.
#[tokio::test]
async fn certificates_tell_who_calls() {
    let place = Place::new();
    let tls = place.whole();
    let names = |name: &str| vec![name.to_owned()];
    let roles = |shown: &Shown| tls.roles(shown, now());

    let (shown, heard) = call(&tls, &place.client(None), "node-a").await.unwrap();
    assert!(shown.is_none() && heard);
    let client = place.clients.issue("b", &names("billing.example"), Use::Client).unwrap();
    let (shown, _) = call(&tls, &place.client(Some(&client)), "node-a").await.unwrap();
    let shown = shown.unwrap();
    assert_eq!(
        (roles(&shown), &shown.names),
        (Roles { peer: false, client: true }, &names("billing.example"))
    );
    let node = place.nodes.issue("b", &names("node-b"), Use::Node).unwrap();
    let (shown, _) = call(&tls, &place.client(Some(&node)), "node-a").await.unwrap();
    let shown = shown.unwrap();
    assert_eq!(roles(&shown), Roles { peer: true, client: false });
    assert!(shown.names_host("node-b") && !shown.names_host("node-a") && !shown.names_host(""));
    // Its time ends while it is connected.
    assert_eq!(tls.roles(&shown, UnixMillis(u64::MAX)), Roles::default());

    let stranger = Authority::new("nodes").unwrap();
    let made = stranger.issue("b", &names("node-b"), Use::Node).unwrap();
    assert!(call(&tls, &place.client(Some(&made)), "node-a").await.is_none(), "a stranger's was believed");
    let old = place.clients.issue_until(a_minute_ago(), "b", &names("billing.example"), Use::Client).unwrap();
    assert!(call(&tls, &place.client(Some(&old)), "node-a").await.is_none(), "an expired one was believed");
    assert!(call(&tls, &place.client(None), "node-b").await.is_none(), "the client called another host");
}

/// Goal: new files hold only if they are valid as a whole, and what was believed before is judged anew.
#[tokio::test]
async fn authorities_change_while_connections_are_open() {
    let place = Place::new();
    let tls = place.whole();
    let node = place.nodes.issue("b", &["node-b".to_owned()], Use::Node).unwrap();
    let (shown, _) = call(&tls, &place.client(Some(&node)), "node-a").await.unwrap();
    let shown = shown.unwrap();
    assert!(tls.roles(&shown, now()).peer);

    // An overlap of two authorities: the old one still holds.
    let next = Authority::new("nodes").unwrap();
    place.write("nodes.pem", &format!("{}{}", place.nodes.cert(), next.cert()));
    tls.replace(&tls.files().read().unwrap()).unwrap();
    assert!(tls.roles(&shown, now()).peer);
    // The node's own certificate is the old authority's: without it the node would not believe itself.
    place.write("nodes.pem", next.cert());
    assert!(matches!(tls.replace(&tls.files().read().unwrap()), Err(TlsError::NotBelieved { .. })));
    assert!(tls.roles(&shown, now()).peer && tls.generation() == 2);
    place.show(&next.issue("a", &["node-a".to_owned()], Use::Node).unwrap());
    tls.replace(&tls.files().read().unwrap()).unwrap();
    assert_eq!(tls.roles(&shown, now()), Roles::default());
    tokio::time::timeout(Duration::from_secs(10), tls.withdrawn(Some(&shown), now)).await.unwrap();
}

/// A port tells TLS from plain HTTP by the first byte, and loses no byte of either.
#[tokio::test]
async fn plain_connections_are_told_apart() {
    let (ours, mut theirs) = duplex(64);
    theirs.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    drop(theirs);
    let Some(Arrived::Plain(mut stream)) = arrive(ours).await else { panic!("not plain") };
    let mut read = String::new();
    stream.read_to_string(&mut read).await.unwrap();
    assert_eq!(read, "GET / HTTP/1.1\r\n");
    let (ours, theirs) = duplex(64);
    drop(theirs);
    assert!(arrive(ours).await.is_none());
    // What begins like a handshake and is none ends the connection with an error.
    let place = Place::new();
    let (ours, mut theirs) = duplex(64);
    theirs.write_all(b"\x16hello, what is this?").await.unwrap();
    drop(theirs);
    let Some(Arrived::Tls(stream)) = arrive(ours).await else { panic!("not TLS") };
    let tls = place.whole();
    assert!(tls.shake_hands(stream).await.is_err());
    assert_eq!(tls.handshakes(), (0, 1));
}

/// Keys are in no output.
#[test]
fn keys_are_not_shown() {
    let place = Place::new();
    let tls = place.whole();
    let contents = place.files(None, None).read().unwrap();
    let shown = format!("{tls:?} {contents:?} {:?}", tls.current());
    assert!(!shown.contains("PRIVATE") && !shown.contains("BEGIN"), "{shown}");
}
