//! Line charts as inline SVG, drawn with the page's own colours so that they follow its theme.

use std::fmt::Write;

use super::html::escape;
use crate::lab::language::{Language, Unit};

/// Pixels of a chart; the page scales it.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    width: f64,
    height: f64,
}

impl Size {
    /// As wide as the page.
    pub const WHOLE: Self = Self { width: 860.0, height: 360.0 };
    /// One of several in a row.
    pub const SMALL: Self = Self { width: 380.0, height: 190.0 };
}

/// What the values of an axis are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Plain numbers.
    Count,
    /// Nanoseconds.
    Nanos,
    /// 1 / (1 - share).
    Share,
}

impl Kind {
    /// The value as a mark of an axis: without digits that it does not need.
    fn text(self, value: f64, language: Language) -> String {
        let (value, unit) = match self {
            Self::Count => (value, String::new()),
            Self::Nanos | Self::Share => {
                let (scale, name) = match value {
                    small if small < 1e6 => (1e3, "µs"),
                    middle if middle < 1e9 => (1e6, "ms"),
                    _ => (1e9, "s"),
                };
                let name =
                    if language == Language::Ru { language.quantity(Unit::Nanos, scale).1 } else { name };
                (value / scale, format!("\u{a0}{name}"))
            }
        };
        let decimals = (0..3).find(|&digits| {
            let scaled = value * 10_f64.powi(digits);
            (scaled - scaled.round()).abs() < 1e-6 * scaled.abs().max(1.0)
        });
        let decimals = usize::try_from(decimals.unwrap_or(3)).unwrap_or(0);
        format!("{}{unit}", language.number(value, decimals))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Nanos => "nanos",
            Self::Share => "share",
        }
    }
}

/// The space around the plot: left, right, top, bottom.
const MARGINS: (f64, f64, f64, f64) = (74.0, 16.0, 12.0, 46.0);

/// How many colours the page has; further lines are dashed.
const COLOURS: usize = 8;

/// One line.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its place among all lines, which gives it its colour.
    pub place: usize,
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
    /// What its values are.
    pub kind: Kind,
    /// Whether the scale is logarithmic.
    pub is_log: bool,
    /// Its ends.
    pub ends: (f64, f64),
    /// The marked values, with their text.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to a round number above `max`, about five marks.
    pub fn linear(title: &str, max: f64, kind: Kind, language: Language) -> Self {
        let step = round_step(max / 5.0);
        let count = (max / step).ceil().max(1.0);
        let ticks = ticks_up_to(count).map(|nth| (nth * step, kind.text(nth * step, language))).collect();
        Self { title: title.into(), kind, is_log: false, ends: (0.0, count * step), ticks }
    }

    /// A logarithmic axis from `min` to `max`, with a mark at 1, 2 and 5 of each factor of ten if there are
    /// few.
    pub fn log(title: &str, (min, max): (f64, f64), kind: Kind, language: Language) -> Self {
        let (low, high) = (min.max(1e-9), max.max(min * 1.1).max(1e-8));
        let decades = (high / low).log10();
        let marks: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(low.log10().floor());
        while decade <= high {
            ticks.extend(marks.iter().map(|mark| mark * decade).filter(|tick| (low..=high).contains(tick)));
            decade *= 10.0;
        }
        let ticks = ticks.into_iter().map(|tick| (tick, kind.text(tick, language))).collect();
        Self { title: title.into(), kind, is_log: true, ends: (low, high), ticks }
    }

    /// `HdrHistogram`'s axis: each factor of ten is another nine, up to `max` = 1 / (1 - share).
    pub fn percentiles(title: &str, max: f64, language: Language) -> Self {
        let high = max.max(100.0);
        let all =
            [(1.0, "0 %"), (2.0, "50 %"), (10.0, "90 %"), (1e2, "99 %"), (1e3, "99.9 %"), (1e4, "99.99 %")];
        let more = [(1e5, "99.999 %"), (1e6, "99.9999 %")];
        let ticks = all.into_iter().chain(more).filter(|(tick, _)| *tick <= high);
        let said = |text: &str| match language {
            Language::En => text.to_owned(),
            Language::Ru => text.replace('.', ","),
        };
        Self {
            title: title.into(),
            kind: Kind::Share,
            is_log: true,
            ends: (1.0, high),
            ticks: ticks.map(|(tick, text)| (tick, said(text))).collect(),
        }
    }

    /// What the page's script needs to read a value from a position: the kind, `log` or `linear`, and the ends.
    fn data(&self) -> String {
        let scale = if self.is_log { "log" } else { "linear" };
        format!("{} {scale} {} {}", self.kind.name(), self.ends.0, self.ends.1)
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
pub fn draw(label: &str, size: Size, x: &Axis, y: &Axis, lines: &[Line]) -> String {
    let (left, right, top, bottom) = MARGINS;
    let (width, height) = (size.width - left - right, size.height - top - bottom);
    let at_x = |value: f64| left + x.place(value) * width;
    let at_y = |value: f64| top + (1.0 - y.place(value)) * height;
    let mut out = format!(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" data-plot=\"{left} {top} {width} {height}\" \
         data-x=\"{}\" data-y=\"{}\">",
        escape(label),
        size.width,
        size.height,
        x.data(),
        y.data(),
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
        size.height - 8.0,
        escape(&x.title),
        top + height / 2.0,
        escape(&y.title),
    );
    for line in lines {
        let nth = line.place;
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
            "<path class=\"line {}\" data-line=\"{nth}\" d=\"M{}\"{dashes}><title>{}</title></path>",
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
        let linear = |max: f64| Axis::linear("", max, Kind::Count, Language::En);
        assert_eq!(marks(&linear(2013.0)), "0 500 1,000 1,500 2,000 2,500");
        assert_eq!(marks(&linear(0.0)), "0 1");
        let log = Axis::log("", (150.0, 3_000.0), Kind::Count, Language::En);
        assert_eq!(marks(&log), "200 500 1,000 2,000");
        let wide = Axis::log("", (1.0, 1e6), Kind::Count, Language::En);
        assert_eq!(marks(&wide), "1 10 100 1,000 10,000 100,000 1,000,000");
        let nanos =
            |language| marks(&Axis::log("", (1e5, 4e6), Kind::Nanos, language)).replace('\u{a0}', " ");
        assert_eq!(nanos(Language::En), "100 µs 200 µs 500 µs 1 ms 2 ms");
        assert_eq!(nanos(Language::Ru), "100 мкс 200 мкс 500 мкс 1 мс 2 мс");
        let shares = |language| marks(&Axis::percentiles("", 20_000.0, language));
        assert_eq!(shares(Language::En), "0 % 50 % 90 % 99 % 99.9 % 99.99 %");
        assert!(shares(Language::Ru).ends_with("99,9 % 99,99 %"));
    }

    /// Goal: points are where they belong, doubtful lines dashed, names escaped. Method: the lines of a small chart.
    #[test]
    fn lines_are_drawn() {
        let x = Axis::linear("t", 10.0, Kind::Count, Language::En);
        let y = Axis::log("v", (1.0, 100.0), Kind::Nanos, Language::En);
        let line = |place, name: &str, is_doubtful| Line {
            name: name.into(),
            place,
            points: vec![(0.0, 1.0), (10.0, 100.0), (5.0, 10.0)],
            is_doubtful,
        };
        let svg = draw("a <chart>", Size::WHOLE, &x, &y, &[line(0, "one", false), line(1, "a & b", true)]);
        let path = "d=\"M74.0 314.0L844.0 12.0L459.0 163.0\"";
        assert!(
            svg.contains(&format!("<path class=\"line c0\" data-line=\"0\" {path}><title>one</title>")),
            "{svg}"
        );
        assert!(svg.contains(&format!("{path} stroke-dasharray=\"2 5\"><title>a &amp; b</title>")), "{svg}");
        assert!(svg.contains("data-x=\"count linear 0 10\" data-y=\"nanos log 1 100\""), "{svg}");
        assert!(svg.contains("aria-label=\"a &lt;chart&gt;\""), "{svg}");
    }
}
