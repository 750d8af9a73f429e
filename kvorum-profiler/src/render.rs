//! Rendering: a profile as collapsed stacks, as a flame graph, as a `pprof` file.

use super::fold::{Entry, Profile};
use super::waits::{NAMED_WAITS, Wait};
use super::{Event, ProfileError, pprof};
use inferno::flamegraph::{self, Options, Palette, color::BasicPalette, color::MultiPalette};

/// The output format of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A flame graph for a browser: SVG with its script inside.
    Svg,
    /// Text, one stack per line: frames from the outside in with `;` between them, a space, the value.
    Collapsed,
    /// `profile.proto` of the `pprof` tool, compressed by gzip.
    Pprof,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Svg, Self::Collapsed, Self::Pprof];

    /// The format's name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Collapsed => "collapsed",
            Self::Pprof => "pprof",
        }
    }

    /// The format called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The format's media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Svg => "image/svg+xml",
            Self::Collapsed => "text/plain; charset=utf-8",
            Self::Pprof => "application/octet-stream",
        }
    }
}

/// Writes `profile` in `format`.
///
/// # Errors
/// [`ProfileError::Format`].
pub fn render(profile: &Profile, format: Format) -> Result<Vec<u8>, ProfileError> {
    match format {
        Format::Svg => flame_graph(profile),
        Format::Collapsed => {
            Ok(lines(profile).into_iter().map(|line| line + "\n").collect::<String>().into_bytes())
        }
        Format::Pprof => pprof::encode(profile).map_err(|source| ProfileError::Format { source }),
    }
}

/// The part of a profile's title behind its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// How long it took, in seconds.
    pub seconds: f64,
    /// How many records it is made of: samples, sampled allocations, waits for locks.
    pub samples: u64,
}

/// The flame graph `svg`, which [`render`] has written, with `name` before its title.
pub fn titled(svg: &str, name: &str) -> String {
    let title = svg
        .split_once(STACKS_BEGIN)
        .and_then(|(_, rest)| rest.split_once(" data-title=\""))
        .and_then(|(_, rest)| rest.split_once('"'));
    let Some((title, _)) = title else { return svg.to_owned() };
    let name = name.replace('&', "&amp;").replace('<', "&lt;");
    svg.replacen(&format!(">{title}<"), &format!(">{name}: {title}<"), 1)
}

/// The element of a flame graph that holds its stacks as text.
const STACKS_BEGIN: &str = "<metadata id=\"kvorum-profile\"";
const STACKS_END: &str = "</metadata>";

/// The stacks in a flame graph that [`render`] has written, as collapsed text, with its event and summary. `None`: it
/// is another SVG.
pub fn stacks_of(svg: &str) -> Option<(Event, Summary, String)> {
    let (_, rest) = svg.split_once(STACKS_BEGIN)?;
    let (attributes, rest) = rest.split_once('>')?;
    let (stacks, _) = rest.split_once(STACKS_END)?;
    let attribute = |name: &str| {
        let (_, rest) = attributes.split_once(&format!(" data-{name}=\""))?;
        rest.split_once('"').map(|(value, _)| value)
    };
    let summary = Summary {
        seconds: attribute("seconds")?.parse().ok()?,
        samples: attribute("samples")?.parse().ok()?,
    };
    let text = stacks.trim_start().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Some((Event::parse(attribute("event")?)?, summary, text))
}

/// Puts the stacks into the flame graph, so that one file has both.
fn with_stacks(graph: Vec<u8>, profile: &Profile, title: &str) -> Vec<u8> {
    let svg = String::from_utf8_lossy(&graph);
    let Some((before, _)) = svg.rsplit_once("</svg>") else { return graph };
    let text: String = lines(profile).into_iter().map(|line| line + "\n").collect();
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "{before}{STACKS_BEGIN} data-event=\"{}\" data-seconds=\"{:.1}\" data-samples=\"{}\" \
         data-title=\"{title}\">\n{text}{STACKS_END}</svg>\n",
        profile.event.name(),
        profile.lasted.as_secs_f64(),
        profile.samples,
    )
    .into_bytes()
}

/// The stacks of the flame graph. For `lock` these are waits of threads, which are shares of one whole: a thread waits
/// for one thing at a time. Named waits of requests, messages and jobs are left out, because they lie within each other.
/// A lock that the commit thread waits for within its wait for the engine counts once, as the lock.
fn graph_lines(profile: &Profile) -> Vec<String> {
    if profile.event != Event::Lock {
        return lines(profile);
    }
    let is_named = |frames: &[String]| frames.first().is_some_and(|frame| frame == NAMED_WAITS);
    let (named, locks): (Vec<_>, Vec<_>) = profile.entries.iter().partition(|entry| is_named(&entry.frames));
    let mut drawn: Vec<(String, u64)> =
        locks.iter().map(|entry| (entry.frames.join(";"), entry.value)).collect();
    for wait in Wait::ALL {
        let Some(thread) = wait.thread() else { continue };
        let found = named.iter().find(|entry| entry.frames.get(1).is_some_and(|name| name == wait.name()));
        let is_within = |entry: &&&Entry| {
            wait == Wait::StorageCommit
                && entry.frames.first().is_some_and(|frame| frame == thread)
                && entry.frames.iter().any(|frame| frame.contains("::storage::"))
        };
        let within: u64 = locks.iter().filter(is_within).map(|entry| entry.value).sum();
        drawn.extend(
            found.map(|entry| (format!("{thread};{}", wait.name()), entry.value.saturating_sub(within))),
        );
    }
    drawn.retain(|(_, value)| *value > 0);
    drawn.into_iter().map(|(frames, value)| format!("{frames} {value}")).collect()
}

/// A count with its unit, as a title has it.
fn counted(profile: &Profile) -> String {
    let unit = match profile.event {
        Event::Cpu | Event::Wall => "samples",
        Event::Alloc | Event::Live => "sampled allocations",
        Event::Lock => "waits for locks",
    };
    format!("{} {unit}", profile.samples)
}

/// Each stack with its value; stacks with less than one unit are left out.
fn lines(profile: &Profile) -> Vec<String> {
    let entries = profile.entries.iter().filter(|entry| entry.value > 0);
    entries.map(|entry| format!("{} {}", entry.frames.join(";"), entry.value)).collect()
}

fn flame_graph(profile: &Profile) -> Result<Vec<u8>, ProfileError> {
    let mut options = Options::default();
    let (title, unit, colors) = match profile.event {
        Event::Cpu => ("CPU", "samples", Palette::Multi(MultiPalette::Rust)),
        Event::Alloc => ("Bytes allocated", "bytes", Palette::Basic(BasicPalette::Mem)),
        Event::Lock => ("Time that threads waited", "microseconds", Palette::Basic(BasicPalette::Blue)),
        Event::Wall => ("All threads, running or not", "samples", Palette::Basic(BasicPalette::Aqua)),
        Event::Live => ("Bytes allocated and not freed", "bytes", Palette::Basic(BasicPalette::Mem)),
    };
    options.title = format!("{title}, {:.1} s, {}", profile.lasted.as_secs_f64(), counted(profile));
    if profile.event == Event::Lock {
        let why = "shares of all waits of threads; waits of requests and queues lie within each other: --format collapsed";
        options.subtitle = Some(why.to_owned());
    }
    unit.clone_into(&mut options.count_name);
    options.colors = colors;
    // A function has the same colour in every graph.
    options.hash = true;
    let lines = graph_lines(profile);
    if lines.is_empty() {
        return Ok(with_stacks(
            nothing_seen(profile.event, &options.title).into_bytes(),
            profile,
            &options.title,
        ));
    }
    let mut graph = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut graph)
        .map_err(|source| ProfileError::Format { source })?;
    Ok(with_stacks(graph, profile, &options.title))
}

/// An SVG with a text, where the library would report an error for no stacks: an idle node is not an error.
fn nothing_seen(event: Event, title: &str) -> String {
    let why = match event {
        Event::Cpu => "nothing was seen: the node used less processor time than one sample takes (10 ms)",
        Event::Alloc => "nothing was seen: the node allocated less than is sampled (256 KiB)",
        Event::Lock => "nothing was seen: no thread waited",
        Event::Wall => "nothing was seen: the profile was too short for a sample of each thread (50 ms)",
        Event::Live => "nothing was seen: less than is sampled (256 KiB) was allocated and not freed",
    };
    format!(
        "<svg version=\"1.1\" width=\"1200\" height=\"80\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" text-anchor=\"middle\"><rect width=\"100%\" height=\"100%\" fill=\"#eee\"/>\
         <text x=\"600\" y=\"32\" font-size=\"17\">{title}</text><text x=\"600\" y=\"60\">{why}</text></svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;
    use std::time::Duration;

    fn profile(entries: &[(&str, u64)]) -> Profile {
        profile_of(Event::Alloc, entries)
    }

    fn profile_of(event: Event, entries: &[(&str, u64)]) -> Profile {
        let entry = |(stack, value): &(&str, u64)| Entry {
            frames: stack.split(';').map(str::to_owned).collect(),
            count: 1,
            value: *value,
        };
        Profile {
            event,
            lasted: Duration::from_millis(1500),
            samples: entries.len() as u64,
            entries: entries.iter().map(entry).collect(),
        }
    }

    #[test]
    fn collapsed_is_a_line_a_stack() {
        let profile = profile(&[("net0;a::b;c", 7), ("net0;quick", 0), ("net1", 1)]);
        let text = String::from_utf8(render(&profile, Format::Collapsed).unwrap()).unwrap();
        assert_eq!(text, "net0;a::b;c 7\nnet1 1\n");
    }

    /// A flame graph has its frames and its unit, and loads nothing; without any stack there is a graph, too.
    #[test]
    fn flame_graphs_stand_alone() {
        for entries in [&[("net0;a::b;c", 7_u64)][..], &[]] {
            let text = String::from_utf8(render(&profile(entries), Format::Svg).unwrap()).unwrap();
            assert!(text.contains("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
            assert_eq!(text.contains("a::b"), !entries.is_empty());
            assert_eq!(text.contains("nothing was seen"), entries.is_empty());
            assert!(
                text.contains("Bytes allocated, 1.5 s, ")
                    && text.contains(" sampled allocations")
                    && !text.contains("ERROR"),
                "{text}"
            );
            for loads in ["href=\"http", "src=", "@import", "url(http", "fetch("] {
                assert!(!text.contains(loads), "{loads}: {text}");
            }
        }
    }

    /// A flame graph gives its stacks back as they were, whatever is in their names; another SVG has none.
    #[test]
    fn stacks_are_in_the_graph() {
        for entries in [&[("net0;<a as b>::c;x & y", 7), ("net1", 2)][..], &[]] {
            let profile = profile_of(Event::Wall, entries);
            let svg = String::from_utf8(render(&profile, Format::Svg).unwrap()).unwrap();
            let (event, summary, text) = stacks_of(&svg).unwrap();
            assert_eq!((event, summary.seconds, summary.samples), (Event::Wall, 1.5, entries.len() as u64));
            assert_eq!(text.into_bytes(), render(&profile, Format::Collapsed).unwrap());
            assert!(
                titled(&svg, "http://n1").contains(">http://n1: All threads, running or not, 1.5 s, "),
                "{svg}"
            );
        }
        assert_eq!(stacks_of("<svg></svg>"), None);
    }

    /// The lock graph has each wait of a thread once, and no waits of requests; the text has all of them.
    #[test]
    fn nested_waits_are_not_drawn() {
        let profile = profile_of(
            Event::Lock,
            &[
                ("kvorum:commit;kvorum_server::storage::lsm::write;lock_contended", 30),
                ("kvorum:net;kvorum_server::http::x;lock_contended", 5),
                ("named waits;commit: queue", 900),
                ("named waits;storage: commit", 100),
                ("named waits;storage: sync", 20),
                ("named waits;coordinator: replicas of a write", 5000),
            ],
        );
        let expect = [
            "kvorum:commit;kvorum_server::storage::lsm::write;lock_contended 30",
            "kvorum:net;kvorum_server::http::x;lock_contended 5",
            "kvorum:commit;storage: commit 70",
            "kvorum:commit;storage: sync 20",
        ];
        assert_eq!(graph_lines(&profile), expect);
        assert!(lines(&profile).contains(&"named waits;coordinator: replicas of a write 5000".to_owned()));
    }
}
