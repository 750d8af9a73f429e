//! Profiles of running nodes: fetched as collapsed stacks, added up over nodes, compared, drawn.
//!
//! A node answers `GET /debug/profile?event=…&seconds=…&format=collapsed` with lines `frame;frame;… value`, the
//! outermost frame first: samples (cpu), bytes (alloc), microseconds waited (lock). A node without that page answers
//! 404; then there are no profiles, and the report says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use inferno::flamegraph::color::{Color, PaletteMap};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::frame_colour::{frame_colour, frame_hex};
use crate::ask::ask;
use crate::error::LabError;
use crate::units::{float, grouped, size};

/// How much longer than its window a profile may take to arrive.
const FETCH_MARGIN: Duration = Duration::from_secs(30);

/// Frames below this share of a profile, in per cent, are not drawn on the page: they would be invisible.
const DRAWN_PERCENT_MIN: f64 = 0.1;

/// The same for files, which take ten times the bytes.
const FILE_PERCENT_MIN: f64 = 0.3;

/// The outermost frame, in lock profiles, of waits that have a name in place of a stack.
const NAMED_WAITS: &str = "named waits";

/// An event that can be profiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// Samples of running threads.
    Cpu,
    /// Bytes allocated.
    Alloc,
    /// Microseconds waited for locks, queues and syncs.
    Lock,
}

impl Event {
    /// Every event, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Alloc, Self::Lock];

    /// The unit of its values.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Cpu => "samples",
            Self::Alloc => "bytes",
            Self::Lock => "microseconds",
        }
    }

    /// A value as text, with its unit.
    pub fn amount(self, value: u64) -> String {
        match self {
            Self::Cpu => format!("{} samples", grouped(value)),
            Self::Alloc => size(float(value)),
            Self::Lock => format!("{:.3} s waited", float(value) / 1e6),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Alloc => "alloc",
            Self::Lock => "lock",
        })
    }
}

/// Collapsed stacks: a value for each list of frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stacks(BTreeMap<String, u64>);

impl Stacks {
    /// Reads collapsed lines; an invalid line is an error and is not skipped.
    ///
    /// # Errors
    /// [`LabError::Subject`] with the line.
    pub fn read(text: &str) -> Result<Self, LabError> {
        let mut stacks = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (frames, value) = line
                .rsplit_once(' ')
                .and_then(|(frames, value)| Some((frames, value.parse().ok()?)))
                .ok_or_else(|| LabError::Subject(format!("a profile has the line {line:?}")))?;
            stacks.add(frames, value);
        }
        Ok(stacks)
    }

    /// The stacks as collapsed lines.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (frames, value) in &self.0 {
            // Writing into a `String` cannot fail.
            let _ = writeln!(out, "{frames} {value}");
        }
        out
    }

    /// Adds the stacks of another node. Threads whose names differ only in a number at the end become one, so
    /// that nodes with several threads of a kind stay comparable.
    pub fn merge(&mut self, other: &Self) {
        for (frames, &value) in &other.0 {
            match frames.split_once(';') {
                Some((thread, rest)) => self.add(&format!("{};{rest}", unnumbered(thread)), value),
                None => self.add(unnumbered(frames), value),
            }
        }
    }

    fn add(&mut self, frames: &str, value: u64) {
        *self.0.entry(frames.to_owned()).or_default() += value;
    }

    /// The sum of all values.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The value under each frame's name, in all its places; a frame that calls itself counts once.
    pub fn inclusive(&self) -> BTreeMap<&str, u64> {
        let mut sums = BTreeMap::new();
        for (frames, value) in &self.0 {
            for name in frames.split(';').collect::<BTreeSet<_>>() {
                *sums.entry(name).or_default() += value;
            }
        }
        sums
    }

    /// The outermost frames.
    pub fn threads(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|frames| frames.split(';').next().unwrap_or(frames))
    }

    /// The waits that nodes name, with the microseconds of each; only lock profiles have any.
    pub fn named_waits(&self) -> BTreeMap<&str, u64> {
        let mut waits = BTreeMap::new();
        for (frames, &value) in &self.0 {
            let name = frames.strip_prefix(NAMED_WAITS).and_then(|rest| rest.strip_prefix(';'));
            if let Some(name) = name.and_then(|rest| rest.split(';').next()) {
                *waits.entry(name).or_default() += value;
            }
        }
        waits
    }

    /// An SVG that opens in a browser on its own.
    ///
    /// # Errors
    /// [`LabError::Machine`] if the library refuses the stacks.
    pub fn svg(&self, title: &str, event: Event) -> Result<String, LabError> {
        let lines = self.0.iter().map(|(frames, value)| format!("{frames} {value}"));
        draw(title, event, self.total() == 0, lines.collect())
    }

    /// The SVG of `self` with each frame coloured by its gain (red) or loss (blue) since `before`.
    ///
    /// # Errors
    /// As [`Self::svg`].
    pub fn difference_svg(&self, before: &Self, title: &str, event: Event) -> Result<String, LabError> {
        let all: BTreeSet<&String> = self.0.keys().chain(before.0.keys()).collect();
        let of = |stacks: &Self, frames: &str| stacks.0.get(frames).copied().unwrap_or(0);
        let lines = all.iter().map(|frames| format!("{frames} {} {}", of(before, frames), of(self, frames)));
        draw(title, event, self.total() == 0, lines.collect())
    }

    /// The data of the report's own flame graph: names with their colours, and frames as `[name, value, children]`.
    pub fn tree(&self) -> Value {
        let mut root = Frame::default();
        for (frames, &value) in &self.0 {
            root.add(frames, value);
        }
        let floor = float(root.value) * DRAWN_PERCENT_MIN / 100.0;
        let mut names = Names::default();
        let tree = root.json("all", floor, &mut names);
        let colours: Vec<String> = names.list.iter().map(|name| frame_hex(name)).collect();
        json!({ "names": names.list, "colours": colours, "root": tree })
    }
}

/// A frame of a tree.
#[derive(Debug, Default)]
struct Frame {
    value: u64,
    children: BTreeMap<String, Frame>,
}

/// Names, each once.
#[derive(Debug, Default)]
struct Names {
    list: Vec<String>,
    places: BTreeMap<String, usize>,
}

impl Names {
    fn place(&mut self, name: &str) -> usize {
        *self.places.entry(name.to_owned()).or_insert_with(|| {
            self.list.push(name.to_owned());
            self.list.len() - 1
        })
    }
}

impl Frame {
    fn add(&mut self, frames: &str, value: u64) {
        let mut at = self;
        at.value += value;
        for name in frames.split(';') {
            at = at.children.entry(name.to_owned()).or_default();
            at.value += value;
        }
    }

    fn json(&self, name: &str, floor: f64, names: &mut Names) -> Value {
        let place = names.place(name);
        let seen = self.children.iter().filter(|(_, child)| float(child.value) >= floor);
        let children: Vec<Value> = seen.map(|(name, child)| child.json(name, floor, names)).collect();
        json!([place, self.value, children])
    }
}

/// The name without its number: `net3` and `worker-12` become `net` and `worker`.
fn unnumbered(thread: &str) -> &str {
    let name = thread.trim_end_matches(|c: char| c.is_ascii_digit());
    let name = name.trim_end_matches(['-', '_', '#', ' ']);
    if name.is_empty() { thread } else { name }
}

fn draw(title: &str, event: Event, is_empty: bool, lines: Vec<String>) -> Result<String, LabError> {
    let mut options = inferno::flamegraph::Options::default();
    options.title = title.into();
    options.count_name = event.unit().into();
    options.min_width = FILE_PERCENT_MIN;
    let mut palette = PaletteMap::default();
    for name in lines.iter().filter_map(|line| line.rsplit_once(' ')).flat_map(|(stack, _)| stack.split(';'))
    {
        let (r, g, b) = frame_colour(name);
        palette.insert(name, Color { r, g, b });
    }
    options.palette_map = Some(&mut palette);
    options.deterministic = true;
    options.font_type = "sans-serif".into();
    let mut svg = Vec::new();
    // The library refuses a list whose values add up to nothing, also where only those before were something.
    let lines = if is_empty { vec!["nothing 1".to_owned()] } else { lines };
    inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .map_err(LabError::machine(format!("draw {title}")))?;
    Ok(String::from_utf8_lossy(&svg).into_owned())
}

/// Whether the node has profiles at all. It asks for an unknown event, so no profile is taken: a node with
/// profiles refuses the event, and another one does not know the path.
///
/// # Errors
/// Only the machine's errors; a node that does not answer counts as one without profiles.
pub fn is_offered(node: SocketAddr) -> Result<bool, LabError> {
    let target = "/debug/profile?event=none&seconds=1&format=collapsed";
    let answer = ask(node, Duration::from_secs(5), async |node| node.page(target).await)?;
    Ok(answer.is_ok_and(|page| page.code != 404 && String::from_utf8_lossy(&page.body).contains("event")))
}

/// Takes one profile on every node at once, and returns when all have come, in the nodes' order.
///
/// # Errors
/// [`LabError::Subject`] with the text of the first node that refused.
pub fn take(nodes: &[SocketAddr], event: Event, window: Duration) -> Result<Vec<Stacks>, LabError> {
    let target = format!("/debug/profile?event={event}&seconds={}&format=collapsed", window.as_secs());
    let of = &|node: SocketAddr| ask(node, window + FETCH_MARGIN, async |node| node.page(&target).await);
    thread::scope(|scope| {
        let asked: Vec<_> = nodes.iter().map(|&node| scope.spawn(move || of(node))).collect();
        let answers = asked.into_iter().map(|thread| {
            let answer =
                thread.join().map_err(|_| LabError::Subject("a thread that asked panicked".into()))??;
            match answer {
                Ok(page) if page.code == 200 => Stacks::read(&String::from_utf8_lossy(&page.body)),
                Ok(page) => {
                    let said = String::from_utf8_lossy(&page.body).trim().to_owned();
                    Err(LabError::Subject(format!("no {event} profile: {} {said}", page.code)))
                }
                Err(failure) => Err(LabError::Subject(format!("no {event} profile: {failure}"))),
            }
        });
        answers.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(text: &str) -> Stacks {
        Stacks::read(text).unwrap()
    }

    /// Goal: collapsed lines are read strictly, with spaces in names. Method: both, and a broken one.
    #[test]
    fn lines_are_read() {
        let read = stacks("net0;<a as b>::c 3\nnet0;d 4\n\nnet0;d 5\n");
        assert_eq!(read.text(), "net0;<a as b>::c 3\nnet0;d 9\n");
        assert_eq!(read.total(), 12);
        let error = Stacks::read("net0;a x").unwrap_err().to_string();
        assert!(error.contains("net0;a x"), "{error}");
    }

    /// Goal: threads of one kind become one over all nodes. Method: names with all kinds of numbers.
    #[test]
    fn threads_are_merged() {
        let mut all = Stacks::default();
        all.merge(&stacks("kvorum:net0;a 1\nkvorum:net1;a 2\nworker-12;b 3\n7;c 4\ncommit 5\n"));
        all.merge(&stacks("kvorum:net0;a 10\n"));
        assert_eq!(all.text(), "7;c 4\ncommit 5\nkvorum:net;a 13\nworker;b 3\n");
    }

    /// Goal: named waits are separated from stacks, and add up. Method: both kinds.
    #[test]
    fn waits_have_names() {
        let read =
            stacks("named waits;commit: queue 5\nnamed waits;commit: queue;x 2\nnet;named waits;y 9\n");
        assert_eq!(read.named_waits().into_iter().collect::<Vec<_>>(), [("commit: queue", 7)]);
    }

    /// Goal: a frame that calls itself counts once, one in several stacks adds up. Method: by hand.
    #[test]
    fn inclusive_values() {
        let read = stacks("t;a;b;a 5\nt;b 2\n");
        let expect = [("a", 5), ("b", 7), ("t", 7)];
        assert_eq!(read.inclusive().into_iter().collect::<Vec<_>>(), expect);
    }

    /// Goal: the tree holds every frame that can be seen. Method: the whole value, with one frame too small.
    #[test]
    fn the_tree_of_a_profile() {
        let expect = json!({
            "names": ["all", "t", "both", "old"],
            "colours": (["all", "t", "both", "old"].map(frame_hex)),
            "root": [0, 2_000_001, [[1, 2_000_001, [[2, 1_990_000, []], [3, 10_000, []]]]]],
        });
        assert_eq!(stacks("t;old 10000\nt;both 1990000\nt;tiny 1\n").tree(), expect);
    }

    /// Goal: the SVG names its frames, and a difference shows two profiles. Method: look for the texts.
    #[test]
    fn svgs_are_drawn() {
        let (before, after) = (stacks("t;hot_loop 100\n"), stacks("t;hot_loop 150\n"));
        let svg = after.svg("one", Event::Cpu).unwrap();
        let (red, green, blue) = frame_colour("hot_loop");
        assert!(svg.contains(&format!("rgb({red},{green},{blue})")), "the page's colour is not in {svg}");
        assert!(svg.contains("hot_loop (150 samples, 100"), "{svg}");
        for empty in [stacks(""), stacks("t;a 0\n")] {
            assert!(empty.svg("none", Event::Lock).is_ok());
            assert!(empty.difference_svg(&empty, "none", Event::Lock).is_ok());
            assert!(empty.difference_svg(&before, "none", Event::Lock).is_ok());
            assert!(after.difference_svg(&empty, "none", Event::Lock).is_ok());
        }
        let svg = after.difference_svg(&before, "two", Event::Cpu).unwrap();
        assert!(svg.contains("hot_loop (150 samples, 100.00%; +33.33%)"), "{svg}");
        assert!(Stacks::default().svg("empty", Event::Lock).unwrap().contains("<svg"));
    }
}
