// A real node in this process, for the examples of the documentation: included by each of them.

/// Runs `example` with the URL of a new single node, and stops the node.
pub fn with_node(example: impl AsyncFnOnce(&str) -> Result<(), kvorum_client::Error>) {
    let dir = tempfile::TempDir::with_prefix("kvorum-example-").unwrap();
    let settings = [
        ("listen", "127.0.0.1:0"),
        ("data-dir", dir.path().to_str().unwrap()),
        ("durability", "os"),
        ("threads", "1"),
    ];
    let settings = settings.map(|(name, value)| (name, value.to_owned())).into();
    let (config, _) = kvorum_server::config::resolve(&settings, &Default::default(), None).unwrap();
    let node = kvorum_server::node::Node::start(&config).unwrap();
    node.wait_until_ready();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(example(&format!("http://{}", node.address())));
    drop(runtime);
    node.stop();
    done.unwrap();
}
