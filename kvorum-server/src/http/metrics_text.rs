//! The two texts of `/metrics`: Prometheus' classic text, and `OpenMetrics` where the client asks for it.
//!
//! Written here rather than by a library: the crate `prometheus-client` writes `OpenMetrics` only, and the crate
//! `prometheus` the classic text only.

use crate::metrics::{LatencyCounts, SHOWN_BOUNDS_MICROS};
use std::fmt::Write as _;

/// The format of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' classic text, version 0.0.4.
    Classic,
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Its `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The labels of a series.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A metric with its readings.
#[derive(Debug)]
pub(super) struct Family {
    /// Its full name: a counter's ends in `_total`. A name whose last word but `_total` is `seconds` or `bytes` has that
    /// unit.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Its readings.
    pub kind: Kind,
}

/// The readings of a metric, by its type.
#[derive(Debug)]
pub(super) enum Kind {
    /// A number that only grows.
    Counter(Vec<(Labels, f64)>),
    /// A number that rises and falls.
    Gauge(Vec<(Labels, f64)>),
    /// Durations by bucket.
    Histogram(Vec<(Labels, LatencyCounts)>),
}

impl Family {
    /// The name without a counter's ending.
    fn stem(&self) -> &'static str {
        match self.kind {
            Kind::Counter(_) => self.name.strip_suffix("_total").unwrap_or(self.name),
            _ => self.name,
        }
    }

    fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"]
            .into_iter()
            .find(|unit| self.stem().strip_suffix(unit).is_some_and(|stem| stem.ends_with('_')))
    }
}

/// The page of `families`.
pub(super) fn render(families: &[Family], format: Format) -> String {
    let mut page = String::with_capacity(64 << 10);
    for family in families {
        // The classic text describes a counter under its whole name, OpenMetrics under its stem.
        let described = if format == Format::Classic { family.name } else { family.stem() };
        let kind = match family.kind {
            Kind::Counter(_) => "counter",
            Kind::Gauge(_) => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        // Writing into a string cannot fail.
        let _ = writeln!(page, "# HELP {described} {}", escaped(family.help, format == Format::OpenMetrics));
        let _ = writeln!(page, "# TYPE {described} {kind}");
        if let Some(unit) = family.unit().filter(|_| format == Format::OpenMetrics) {
            let _ = writeln!(page, "# UNIT {described} {unit}");
        }
        match &family.kind {
            Kind::Counter(rows) | Kind::Gauge(rows) => {
                for (labels, value) in rows {
                    sample(&mut page, family.name, "", labels, None, *value);
                }
            }
            Kind::Histogram(rows) => {
                for (labels, counts) in rows {
                    histogram(&mut page, family.name, labels, counts, format);
                }
            }
        }
    }
    if format == Format::OpenMetrics {
        page.push_str("# EOF\n");
    }
    page
}

fn histogram(page: &mut String, name: &str, labels: &Labels, counts: &LatencyCounts, format: Format) {
    let bound_text = |bound: &u64| {
        let text = seconds(*bound).to_string();
        // OpenMetrics wants numbers in one form only: 1.0, not 1.
        let is_bare = format == Format::OpenMetrics && !text.contains('.');
        if is_bare { text + ".0" } else { text }
    };
    let bounds = SHOWN_BOUNDS_MICROS.iter().map(bound_text).chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(counts.shown()) {
        sample(page, name, "_bucket", labels, Some(&bound), whole(count));
    }
    sample(page, name, "_sum", labels, None, seconds(counts.sum_micros));
    sample(page, name, "_count", labels, None, whole(counts.count()));
}

fn sample(page: &mut String, name: &str, ending: &str, labels: &Labels, bound: Option<&str>, value: f64) {
    page.push_str(name);
    page.push_str(ending);
    let bound = bound.map(|bound| ("le", bound));
    let mut opened = false;
    for (label, text) in labels.iter().map(|(label, text)| (*label, text.as_str())).chain(bound) {
        page.push(if opened { ',' } else { '{' });
        opened = true;
        let _ = write!(page, "{label}=\"{}\"", escaped(text, true));
    }
    if opened {
        page.push('}');
    }
    let _ = writeln!(page, " {value}");
}

/// Text in which no character ends its place: backslash and line feed, and within quotes these.
fn escaped(text: &str, with_quotes: bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => safe.push_str("\\\\"),
            '\n' => safe.push_str("\\n"),
            '"' if with_quotes => safe.push_str("\\\""),
            other => safe.push(other),
        }
    }
    safe
}

/// A count as a metric's value.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float: counts are exact up to 2^53")]
pub(super) fn whole(count: u64) -> f64 {
    count as f64
}

/// Microseconds as seconds.
pub(super) fn seconds(micros: u64) -> f64 {
    whole(micros) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LatencyHistogram;
    use std::time::Duration;

    fn families() -> Vec<Family> {
        let histogram = LatencyHistogram::default();
        histogram.observe(Duration::from_micros(40));
        histogram.observe(Duration::from_secs(20));
        vec![
            Family {
                name: "kvorum_x_bytes_total",
                help: "A \"word\"\\\nand",
                kind: Kind::Counter(vec![(vec![("peer", "a\"b\\c\nd".to_owned())], 7.0)]),
            },
            Family { name: "kvorum_off_seconds", help: "Off", kind: Kind::Gauge(vec![(Vec::new(), -0.25)]) },
            Family {
                name: "kvorum_took_seconds",
                help: "Took",
                kind: Kind::Histogram(vec![(vec![("operation", "get".to_owned())], histogram.read())]),
            },
        ]
    }

    /// Golden: the classic text names counters whole, escapes no quote in help, and has neither units nor an end.
    #[test]
    fn classic_text() {
        let page = render(&families(), Format::Classic);
        let begin = "# HELP kvorum_x_bytes_total A \"word\"\\\\\\nand\n# TYPE kvorum_x_bytes_total counter\n\
                     kvorum_x_bytes_total{peer=\"a\\\"b\\\\c\\nd\"} 7\n\
                     # HELP kvorum_off_seconds Off\n# TYPE kvorum_off_seconds gauge\nkvorum_off_seconds -0.25\n";
        assert!(page.starts_with(begin), "{page}");
        assert!(page.contains("kvorum_took_seconds_bucket{operation=\"get\",le=\"0.00005\"} 1\n"), "{page}");
        assert!(page.contains("kvorum_took_seconds_bucket{operation=\"get\",le=\"0.025\"} 1\n"), "{page}");
        let end = "le=\"10\"} 1\nkvorum_took_seconds_bucket{operation=\"get\",le=\"+Inf\"} 2\n\
                   kvorum_took_seconds_sum{operation=\"get\"} 20.00004\n\
                   kvorum_took_seconds_count{operation=\"get\"} 2\n";
        assert!(page.ends_with(end), "{page}");
        assert!(!page.contains("UNIT") && !page.contains("EOF"));
    }

    /// Golden: `OpenMetrics` names counters by their stem, has units, and ends with a mark.
    #[test]
    fn open_metrics_text() {
        let page = render(&families(), Format::OpenMetrics);
        let begin = "# HELP kvorum_x_bytes A \\\"word\\\"\\\\\\nand\n# TYPE kvorum_x_bytes counter\n\
                     # UNIT kvorum_x_bytes bytes\nkvorum_x_bytes_total{peer=";
        assert!(page.starts_with(begin), "{page}");
        assert!(page.contains("# UNIT kvorum_took_seconds seconds\n"), "{page}");
        assert!(page.contains("le=\"10.0\"} 1\n") && page.ends_with("\n# EOF\n"), "{page}");
    }
}
