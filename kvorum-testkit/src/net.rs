//! Network namespaces: one per node, joined by a bridge, each of which can be cut off from the others. The
//! tests' clients stay outside and reach every node whatever is cut. Everything is removed on drop.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

/// Which packets between a node and the other nodes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// All.
    Both,
    /// Packets that the node sends: requests arrive at it, its replies do not come back.
    Sent,
    /// Packets that are sent to it: its requests arrive, replies do not come back.
    Received,
}

/// The network of one cluster.
#[derive(Debug)]
pub struct Network {
    name: String,
    subnet: [u8; 3],
    count: u8,
}

fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program).args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Network {
    /// A network of `count` nodes.
    ///
    /// # Errors
    /// The reason: no root, no `ip` or `nft`, or a kernel without them.
    pub fn new(count: u8, number: u8) -> Result<Self, String> {
        let pid = std::process::id();
        // Names of interfaces have at most 15 bytes.
        let name = format!("kv{pid}{number}");
        let subnet = [10, 128 + u8::try_from(pid >> 6 & 0x7f).unwrap(), (pid << 2 & 0xfc) as u8 | number & 3];
        let network = Self { name, subnet, count };
        network.build()?;
        Ok(network)
    }

    fn build(&self) -> Result<(), String> {
        let (name, [a, b, c]) = (&self.name, self.subnet);
        run("ip", &format!("link add {name} type bridge"))?;
        run("ip", &format!("addr add {a}.{b}.{c}.254/24 dev {name}"))?;
        run("ip", &format!("link set {name} up"))?;
        for node in 0..self.count {
            let space = self.space(node);
            run("ip", &format!("netns add {space}"))?;
            run("ip", &format!("link add {space} type veth peer name eth0 netns {space}"))?;
            run("ip", &format!("link set {space} master {name}"))?;
            run("ip", &format!("link set {space} up"))?;
            run("ip", &format!("-n {space} addr add {a}.{b}.{c}.{}/24 dev eth0", node + 1))?;
            run("ip", &format!("-n {space} link set eth0 up"))?;
            run("ip", &format!("-n {space} link set lo up"))?;
        }
        self.cut(0, Cut::Both)?;
        self.heal(0)
    }

    fn space(&self, node: u8) -> String {
        format!("{}-{node}", self.name)
    }

    /// The words before a program's name that make it run in the namespace of `node`.
    pub fn prefix(&self, node: u8) -> Vec<String> {
        ["ip", "netns", "exec"].into_iter().map(str::to_owned).chain([self.space(node)]).collect()
    }

    /// The addresses of the nodes.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let [a, b, c] = self.subnet;
        (1..=self.count).map(|host| SocketAddr::from((Ipv4Addr::new(a, b, c, host), 7101))).collect()
    }

    /// Cuts `node` off from all other nodes.
    ///
    /// # Errors
    /// The error text of `nft`.
    pub fn cut(&self, node: u8, cut: Cut) -> Result<(), String> {
        let [a, b, c] = self.subnet;
        let nodes = format!("{a}.{b}.{c}.1-{a}.{b}.{c}.{}", self.count);
        let own = format!("{a}.{b}.{c}.{}", node + 1);
        let chain = |hook: &str, side: &str| {
            format!(
                "add chain inet cut {hook} {{ type filter hook {hook} priority 0 ; }} ; \
                 add rule inet cut {hook} ip {side} {nodes} ip {side} != {own} drop ; "
            )
        };
        let mut script = "add table inet cut ; ".to_owned();
        if cut != Cut::Received {
            script += &chain("output", "daddr");
        }
        if cut != Cut::Sent {
            script += &chain("input", "saddr");
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(node), "nft", &script]);
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("nft: {error}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    }

    /// Joins `node` to the others again.
    ///
    /// # Errors
    /// The error text of `nft`.
    pub fn heal(&self, node: u8) -> Result<(), String> {
        run("ip", &format!("netns exec {} nft delete table inet cut", self.space(node)))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Parts that were not created cannot be removed; that is no failure. A namespace may outlive its name
        // for as long as the kernel has connections in it, so the interfaces are removed by themselves.
        for node in 0..self.count {
            let _ = run("ip", &format!("link del {}", self.space(node)));
            let _ = run("ip", &format!("netns del {}", self.space(node)));
        }
        let _ = run("ip", &format!("link del {}", self.name));
    }
}
