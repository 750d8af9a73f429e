//! Line charts as inline SVG, drawn with the page's own colours so that they follow its theme.

use std::fmt::Write;

use super::html::escape;

/// Pixels of a chart; the page scales it.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 360.0;
/// The space around the plot: left, right, top, bottom.
const MARGINS: (f64, f64, f64, f64) = (74.0, 16.0, 12.0, 46.0);

/// How many colours the page has; further lines are dashed.
const COLOURS: usize = 8;

/// One line.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
    /// Whether the values are unreliable.
    pub is_doubtful: bool,
}

/// One axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Its quantity, with the unit.
    pub title: String,
    /// Whether the scale is logarithmic.
    pub is_log: bool,
    /// Its ends.
    pub ends: (f64, f64),
    /// The marked values, with their text.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to a round number above `max`, about five marks.
    pub fn linear(title: &str, max: f64, text: impl Fn(f64) -> String) -> Self {
        let step = round_step(max / 5.0);
        let count = (max / step).ceil().max(1.0);
        let ticks = ticks_up_to(count).map(|nth| (nth * step, text(nth * step))).collect();
        Self { title: title.into(), is_log: false, ends: (0.0, count * step), ticks }
    }

    /// A logarithmic axis from `min` to `max`, with a mark at 1, 2 and 5 of each factor of ten if there are
    /// few.
    pub fn log(title: &str, (min, max): (f64, f64), text: impl Fn(f64) -> String) -> Self {
        let (low, high) = (min.max(1e-9), max.max(min * 1.1).max(1e-8));
        let decades = (high / low).log10();
        let marks: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(low.log10().floor());
        while decade <= high {
            ticks.extend(marks.iter().map(|mark| mark * decade).filter(|tick| (low..=high).contains(tick)));
            decade *= 10.0;
        }
        let ticks = ticks.into_iter().map(|tick| (tick, text(tick))).collect();
        Self { title: title.into(), is_log: true, ends: (low, high), ticks }
    }

    /// `HdrHistogram`'s axis: each factor of ten is another nine, up to `max` = 1 / (1 - share).
    pub fn percentiles(max: f64) -> Self {
        let high = max.max(100.0);
        let all =
            [(1.0, "0 %"), (2.0, "50 %"), (10.0, "90 %"), (1e2, "99 %"), (1e3, "99.9 %"), (1e4, "99.99 %")];
        let more = [(1e5, "99.999 %"), (1e6, "99.9999 %")];
        let ticks = all.into_iter().chain(more).filter(|(tick, _)| *tick <= high);
        Self {
            title: "share of requests".into(),
            is_log: true,
            ends: (1.0, high),
            ticks: ticks.map(|(tick, text)| (tick, text.to_owned())).collect(),
        }
    }

    /// The position of `value`, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let (low, high) = self.ends;
        let share = if self.is_log {
            (value.max(low) / low).ln() / (high / low).ln()
        } else {
            (value - low) / (high - low)
        };
        share.clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 of a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    if least <= 0.0 || !least.is_finite() {
        return 1.0;
    }
    let decade = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|mark| mark * decade).find(|step| *step >= least).unwrap_or(least)
}

fn ticks_up_to(count: f64) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(0.0), |nth| Some(nth + 1.0)).take_while(move |nth| *nth <= count)
}

/// The class that gives line `nth` its colour.
pub fn colour(nth: usize) -> String {
    format!("c{}", nth % COLOURS)
}

/// The chart of `lines`, described by `label`.
pub fn draw(label: &str, x: &Axis, y: &Axis, lines: &[Line]) -> String {
    let (left, right, top, bottom) = MARGINS;
    let (width, height) = (WIDTH - left - right, HEIGHT - top - bottom);
    let at_x = |value: f64| left + x.place(value) * width;
    let at_y = |value: f64| top + (1.0 - y.place(value)) * height;
    let mut out = format!(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">",
        escape(label)
    );
    // Writing into a `String` cannot fail.
    for (tick, text) in &y.ticks {
        let place = at_y(*tick);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{left} {place:.1}h{width}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            left - 6.0,
            place + 4.0,
            escape(text),
        );
    }
    for (tick, text) in &x.ticks {
        let place = at_x(*tick);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{place:.1} {top}v{height}\"/><text x=\"{place:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{}</text>",
            top + height + 16.0,
            escape(text),
        );
    }
    let _ = write!(
        out,
        "<text class=\"title\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"title\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        left + width / 2.0,
        HEIGHT - 8.0,
        escape(&x.title),
        top + height / 2.0,
        escape(&y.title),
    );
    for (nth, line) in lines.iter().enumerate() {
        let points: Vec<String> =
            line.points.iter().map(|&(x, y)| format!("{:.1} {:.1}", at_x(x), at_y(y))).collect();
        if points.is_empty() {
            continue;
        }
        let dashes = match (line.is_doubtful, nth / COLOURS) {
            (true, _) => " stroke-dasharray=\"2 5\"",
            (false, 0) => "",
            (false, _) => " stroke-dasharray=\"8 4\"",
        };
        let _ = write!(
            out,
            "<path class=\"line {}\" d=\"M{}\"{dashes}><title>{}</title></path>",
            colour(nth),
            points.join("L"),
            escape(&line.name),
        );
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: axes have round marks that hold all values. Method: a few of each kind.
    #[test]
    fn axes_are_round() {
        let marks =
            |axis: &Axis| axis.ticks.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>().join(" ");
        let linear = |max: f64| Axis::linear("", max, |value| format!("{value}"));
        assert_eq!(marks(&linear(2013.0)), "0 500 1000 1500 2000 2500");
        assert_eq!(marks(&linear(0.0)), "0 1");
        let log = Axis::log("", (150.0, 3_000.0), |value| format!("{value:.0}"));
        assert_eq!(marks(&log), "200 500 1000 2000");
        let wide = Axis::log("", (1.0, 1e6), |value| format!("{value:.0}"));
        assert_eq!(marks(&wide), "1 10 100 1000 10000 100000 1000000");
        assert_eq!(marks(&Axis::percentiles(20_000.0)), "0 % 50 % 90 % 99 % 99.9 % 99.99 %");
    }

    /// Goal: points are where they belong, doubtful lines dashed, names escaped. Method: the lines of a small chart.
    #[test]
    fn lines_are_drawn() {
        let x = Axis::linear("t", 10.0, |value| format!("{value}"));
        let y = Axis::log("v", (1.0, 100.0), |value| format!("{value}"));
        let line = |name: &str, is_doubtful| Line {
            name: name.into(),
            points: vec![(0.0, 1.0), (10.0, 100.0), (5.0, 10.0)],
            is_doubtful,
        };
        let svg = draw("a <chart>", &x, &y, &[line("one", false), line("a & b", true)]);
        let path = "d=\"M74.0 314.0L844.0 12.0L459.0 163.0\"";
        assert!(svg.contains(&format!("<path class=\"line c0\" {path}><title>one</title>")), "{svg}");
        assert!(svg.contains(&format!("{path} stroke-dasharray=\"2 5\"><title>a &amp; b</title>")), "{svg}");
        assert!(svg.contains("aria-label=\"a &lt;chart&gt;\""), "{svg}");
    }
}
