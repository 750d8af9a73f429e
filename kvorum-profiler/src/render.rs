//! Rendering: a profile as collapsed stacks, as a flame graph, as a `pprof` file.

use super::fold::Profile;
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
        Event::Lock => ("Time waited", "microseconds", Palette::Basic(BasicPalette::Blue)),
    };
    options.title = format!("{title}, {:.1} s", profile.lasted.as_secs_f64());
    unit.clone_into(&mut options.count_name);
    options.colors = colors;
    // A function has the same colour in every graph.
    options.hash = true;
    let lines = lines(profile);
    if lines.is_empty() {
        return Ok(nothing_seen(profile.event, &options.title).into_bytes());
    }
    let mut graph = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut graph)
        .map_err(|source| ProfileError::Format { source })?;
    Ok(graph)
}

/// An SVG with a text, where the library would report an error for no stacks: an idle node is not an error.
fn nothing_seen(event: Event, title: &str) -> String {
    let why = match event {
        Event::Cpu => "nothing was seen: the node used less processor time than one sample takes (10 ms)",
        Event::Alloc => "nothing was seen: the node allocated less than is sampled (256 KiB)",
        Event::Lock => "nothing was seen: nobody waited",
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
        let entry = |(stack, value): &(&str, u64)| Entry {
            frames: stack.split(';').map(str::to_owned).collect(),
            count: 1,
            value: *value,
        };
        Profile {
            event: Event::Alloc,
            lasted: Duration::from_millis(1500),
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
            assert!(text.contains("Bytes allocated, 1.5 s") && !text.contains("ERROR"), "{text}");
            for loads in ["href=\"http", "src=", "@import", "url(http", "fetch("] {
                assert!(!text.contains(loads), "{loads}: {text}");
            }
        }
    }
}
