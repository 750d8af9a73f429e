//! A stand-in for the `kvorum` binary, to try the suite with: `toy-node serve --listen HOST:PORT …`.
#![expect(clippy::disallowed_types, reason = "a real server for tests of real sockets")]

#[path = "../tests/support/mod.rs"]
mod support;

use support::{Behaviour, Toy};

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let after_listen = words.iter().skip_while(|word| *word != "--listen").nth(1);
    let address = after_listen.map_or("127.0.0.1:8080", String::as_str);
    let listener = std::net::TcpListener::bind(address)?;
    Toy::new(|_| Behaviour::Right).accept(&listener);
    Ok(())
}
