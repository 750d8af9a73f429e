//! `kvorum profile`: asks a node for a profile of itself, and writes it to a file or to standard output.
//!
//! It speaks HTTP itself rather than by `kvorum-client`, which takes turns over nodes and tries again: a profile is of one
//! node, and a second attempt would be of another time.

use super::client::{DEFAULT_URL, Failure, write_out};
use super::{complain_of, flag, text_of};
use crate::profile::{Event, Format, SECONDS_MAX};
use bytes::Bytes;
use clap::{ArgMatches, Command, value_parser};
use http::header::HOST;
use http::{Request, StatusCode, Uri};
use http_body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::ffi::OsString;
use std::fmt::Display;
use std::future::poll_fn;
use std::io::{self, IsTerminal};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a node may take to name the stacks of a profile and to send it, beyond the profile itself.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) fn command() -> Command {
    Command::new("profile")
        .about("Profiles a node on this machine: a flame graph of where it spends time or memory")
        .arg(
            flag("event", "EVENT", "What to count: time on processors, bytes allocated, or time waited")
                .value_parser(Event::ALL.map(Event::name))
                .default_value(Event::Cpu.name()),
        )
        .arg(
            flag("seconds", "N", "For how long")
                .value_parser(value_parser!(u16).range(1..=i64::from(SECONDS_MAX)))
                .default_value("10"),
        )
        .arg(
            flag("format", "FORMAT", "How to write it: for a browser, as text, or for the pprof tool")
                .value_parser(Format::ALL.map(Format::name))
                .default_value(Format::Svg.name()),
        )
        .arg(flag("url", "URL", format!("The node [env: KVORUM_URL, its first] [default: {DEFAULT_URL}]")))
        .arg(
            flag("output", "FILE", "Writes to a file instead of standard output")
                .short('o')
                .value_parser(value_parser!(OsString)),
        )
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(profile(matches)));
    done.map_or_else(complain_of, |()| ExitCode::SUCCESS)
}

async fn profile(matches: &ArgMatches) -> Result<(), Failure> {
    let format = text_of(matches, "format").unwrap_or_default();
    let output = matches.get_one::<OsString>("output");
    if format == Format::Pprof.name() && output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::Usage("pprof files are no text: name a file by -o, or a pipe".to_owned()));
    }
    let event = text_of(matches, "event").unwrap_or_default();
    let seconds = matches.get_one::<u16>("seconds").copied().unwrap_or_default();
    let environment = std::env::var("KVORUM_URL").ok();
    let url = text_of(matches, "url").or(environment.as_deref()).unwrap_or(DEFAULT_URL);
    let url = url.split(',').next().unwrap_or_default().trim();
    let query = format!("event={event}&seconds={seconds}&format={format}");
    let patience = Duration::from_secs(seconds.into()) + PATIENCE;
    let profile = match tokio::time::timeout(patience, fetch(url, &query)).await {
        Ok(profile) => profile?,
        Err(_) => return Err(Failure::Failed(format!("{url}: no profile within {} s", patience.as_secs()))),
    };
    match output {
        #[expect(clippy::disallowed_methods, reason = "the user asks for this file")]
        Some(path) => std::fs::write(path, &profile)?,
        None => write_out(&profile)?,
    }
    Ok(())
}

/// The profile that the node at `url` takes.
async fn fetch(url: &str, query: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: &dyn Display| Failure::Failed(format!("{url}: {error}"));
    let parsed: Option<Uri> = url.parse().ok();
    let at = parsed.as_ref().and_then(|url| Some((url.authority()?, url.port_u16().unwrap_or(80))));
    let Some((authority, port)) = at.filter(|_| url.starts_with("http://")) else {
        return Err(Failure::Usage(format!("{url:?} is no node: a URL such as {DEFAULT_URL} is needed")));
    };
    let host = authority.host().trim_matches(['[', ']']);
    #[expect(clippy::disallowed_methods, reason = "a client's socket")]
    let stream = TcpStream::connect((host, port)).await.map_err(|error| failed(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    let request = Request::get(format!("/debug/profile?{query}")).header(HOST, authority.as_str());
    let request = request.body(String::new()).map_err(|error| failed(&error))?;
    let answer = async move {
        let response = sender.send_request(request).await?;
        let (head, mut body) = response.into_parts();
        let mut whole = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            whole.extend_from_slice(&frame?.into_data().unwrap_or_else(|_| Bytes::new()));
        }
        Ok((head.status, whole))
    };
    // The connection moves the bytes meanwhile; it ends when the answer is here, whose sender is gone then.
    let (answer, _) = tokio::join!(answer, connection);
    let (status, body) = answer.map_err(|error: hyper::Error| failed(&error))?;
    if status == StatusCode::OK {
        return Ok(body);
    }
    let reason = String::from_utf8_lossy(&body);
    let reason = format!("{url}: {status}: {}", reason.trim_end());
    Err(if status == StatusCode::BAD_REQUEST { Failure::Usage(reason) } else { Failure::Failed(reason) })
}
