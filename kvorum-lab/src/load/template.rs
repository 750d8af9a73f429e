//! Requests of a service with keys whose paths are not kvorum's: templates of request lines and of the body.
//!
//! | placeholder | in | stands for |
//! | --- | --- | --- |
//! | `{key}` | lines | the key; it needs no percent-encoding |
//! | `{ack}`, `{from}` | lines | the load's quorum |
//! | `{value}` | body | the value's bytes as they are |
//! | `{value-hex}` | body | the value in hexadecimal digits, for bodies that are text |
//!
//! Braces around anything else are text, so a body can be JSON. A GET is right if its body is that of the PUT.
//!
//! A [script](super::script) becomes a template, too: one request, in the place of the write, whose texts have numbers in
//! place of keys.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use super::headers::{Header, lines};
use super::mix::{Action, Mix};
use super::operation::Operation;
use super::replicas::Replicas;
use crate::dataset::Records;
use crate::error::LabError;
use crate::rng::{SplitMix64, mix};

/// The texts of a template, as a lab file has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TemplateTexts {
    /// Method and path of a write, as `PUT /v0/entity?id={key}`.
    pub put: Option<String>,
    /// Method and path of a read.
    pub get: Option<String>,
    /// Method and path of a removal.
    pub delete: Option<String>,
    /// The body of a write, and of the answer to a read; `{value}` without it.
    pub body: Option<String>,
    /// The header `Content-Type` of a write.
    pub content_type: Option<String>,
    /// The statuses of success; 200 to 299 without it.
    pub ok: Option<BTreeSet<u16>>,
}

/// A whole number that follows from a request's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    source: Source,
    /// Digits at least, with zeros in front.
    width: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// `first`, and `step` more with every request.
    Counter { first: i64, step: i64 },
    /// From `low` to `high`, all equally likely; `draw` tells apart the draws of one request.
    Random { low: i64, high: i64, draw: u64 },
}

impl Number {
    /// A number that does not change.
    pub(super) const fn of(first: i64) -> Self {
        Self { source: Source::Counter { first, step: 0 }, width: 0 }
    }

    /// A number from `low` to `high`, which is not below `low`.
    pub(super) const fn random(low: i64, high: i64, draw: u64) -> Self {
        Self { source: Source::Random { low, high, draw }, width: 0 }
    }

    /// The same with at least `width` digits.
    pub(super) fn padded(self, width: usize) -> Self {
        Self { width: width.min(WIDTH_MAX), ..self }
    }

    /// The same, and `step` more with every request.
    pub(super) fn stepped(self, step: i64) -> Self {
        match self.source {
            Source::Counter { first, .. } => Self { source: Source::Counter { first, step }, ..self },
            Source::Random { .. } => self,
        }
    }

    /// The same, `by` larger.
    pub(super) fn plus(self, by: i64) -> Self {
        let source = match self.source {
            Source::Counter { first, step } => Source::Counter { first: first.saturating_add(by), step },
            Source::Random { low, high, draw } => {
                Source::Random { low: low.saturating_add(by), high: high.saturating_add(by), draw }
            }
        };
        Self { source, ..self }
    }

    /// The value, if it is the same for all requests.
    pub(super) fn constant(self) -> Option<i64> {
        match self.source {
            Source::Counter { first, step: 0 } => Some(first),
            Source::Counter { .. } | Source::Random { .. } => None,
        }
    }

    /// The number of request `index`, as text.
    pub(super) fn text(self, index: u64, seed: u64) -> String {
        let value = match self.source {
            Source::Counter { first, step } => {
                first.saturating_add(step.saturating_mul(i64::try_from(index).unwrap_or(i64::MAX)))
            }
            Source::Random { low, high, draw } => {
                let mut rng = SplitMix64::new(mix(seed ^ mix(index ^ mix(draw))));
                let below = high.abs_diff(low).saturating_add(1);
                low.saturating_add_unsigned(rng.below(below))
            }
        };
        format!("{value:0width$}", width = self.width)
    }
}

/// The most digits of a number.
const WIDTH_MAX: usize = 64;

/// A part of a line or of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    Key,
    Ack,
    From,
    Value,
    ValueHex,
    Number(Number),
}

/// A request line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    method: String,
    target: Vec<Part>,
}

/// The requests of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    put: Option<Line>,
    get: Option<Line>,
    delete: Option<Line>,
    body: Vec<Part>,
    content_type: Option<String>,
    ok: Option<BTreeSet<u16>>,
    /// Headers of every request, beside those of the command line.
    headers: BTreeMap<String, Vec<Part>>,
    /// Whether the write has a body at all.
    has_body: bool,
}

impl Template {
    /// Reads the texts of a template.
    ///
    /// # Errors
    /// A sentence that names the text and the mistake in it.
    pub fn read(texts: &TemplateTexts) -> Result<Self, String> {
        let line = |name: &str, text: &Option<String>| {
            let read = text.as_deref().map(Line::read).transpose();
            read.map_err(|why| format!("target.{name}: {why}"))
        };
        let body = texts.body.as_deref().unwrap_or("{value}");
        let body = parts(body, &[("value", Part::Value), ("value-hex", Part::ValueHex)])
            .map_err(|why| format!("target.body: {why}"))?;
        if texts.content_type.as_ref().is_some_and(|text| text.chars().any(char::is_control)) {
            return Err("target.content-type: a control character".into());
        }
        if texts.ok.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err("target.ok: at least one status is needed".into());
        }
        Ok(Self {
            put: line("put", &texts.put)?,
            get: line("get", &texts.get)?,
            delete: line("delete", &texts.delete)?,
            body,
            content_type: texts.content_type.clone(),
            ok: texts.ok.clone(),
            headers: BTreeMap::new(),
            has_body: true,
        })
    }

    /// The one request of a script. As for wrk, statuses below 400 are those of a success.
    ///
    /// # Errors
    /// A sentence that names the text and the mistake in it.
    pub(super) fn scripted(
        method: String,
        target: Vec<Part>,
        body: Option<Vec<Part>>,
        headers: BTreeMap<String, Vec<Part>>,
    ) -> Result<Self, String> {
        check_method(&method)?;
        if method == "HEAD" || method == "CONNECT" {
            return Err(format!("{method}: bench does not read answers of that kind"));
        }
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            _ => "0".to_owned(),
        };
        check_target(&target.iter().map(text).collect::<String>())?;
        for (name, value) in &headers {
            Header::new(name, &value.iter().map(text).collect::<String>())?;
        }
        Ok(Self {
            put: Some(Line { method, target }),
            get: None,
            delete: None,
            has_body: body.is_some(),
            body: body.unwrap_or_default(),
            content_type: None,
            ok: Some((200..=399).collect()),
            headers,
        })
    }

    /// The header lines of every request to `host`: those of the command line, and not those that the script has in
    /// their place.
    pub(super) fn head(&self, host: &str, headers: &[Header]) -> String {
        let is_own = |header: &&Header| !self.headers.keys().any(|name| header.is(name));
        let others: Vec<Header> = headers.iter().filter(is_own).cloned().collect();
        let text = lines(host, &others);
        let is_host = self.headers.keys().any(|name| name.eq_ignore_ascii_case("host"));
        let line = format!("Host: {host}\r\n");
        text.strip_prefix(&line).filter(|_| is_host).map_or(text.clone(), str::to_owned)
    }

    /// Whether the template has all requests of a stream of `operation`, or of `mix` in its place.
    ///
    /// # Errors
    /// [`LabError::Usage`] with the request that it does not have, or the quorum that is missing.
    pub fn check(
        &self,
        operation: Operation,
        mix: Option<&Mix>,
        replicas: Option<Replicas>,
    ) -> Result<(), LabError> {
        let kinds: Vec<&str> = match mix {
            Some(mix) => mix.kinds().collect(),
            None => vec![Action::from(operation).name()],
        };
        for kind in kinds {
            let wanted: &[(&str, &Option<Line>)] = match kind {
                "get" => &[("get", &self.get)],
                "delete" => &[("delete", &self.delete)],
                "read-modify-write" => &[("get", &self.get), ("put", &self.put)],
                "scan" => return Err(LabError::Usage("target: a target has no scans".into())),
                _ => &[("put", &self.put)],
            };
            for (name, line) in wanted {
                let Some(line) = line else {
                    return Err(LabError::Usage(format!("target.{name} is missing, and this load needs it")));
                };
                if replicas.is_none() && line.target.iter().any(|part| matches!(part, Part::Ack | Part::From))
                {
                    let why = format!("target.{name} has {{ack}} or {{from}}, and the load no replicas");
                    return Err(LabError::Usage(why));
                }
            }
        }
        Ok(())
    }

    /// Whether `status` is that of a success.
    pub fn is_ok(&self, status: u16) -> bool {
        self.ok.as_ref().map_or((200..=299).contains(&status), |ok| ok.contains(&status))
    }

    /// Appends the whole request of `action` on key `index`, or nothing if there is no such request, which
    /// [`Template::check`] has excluded.
    pub(super) fn write(
        &self,
        records: &Records,
        replicas: Option<Replicas>,
        head: &str,
        (action, index): (Action, u64),
        out: &mut Vec<u8>,
    ) {
        let (line, has_body) = match action {
            Action::Put | Action::Insert => (&self.put, self.has_body),
            Action::Get | Action::ReadModifyWrite => (&self.get, false),
            Action::Delete => (&self.delete, false),
            Action::Scan { .. } => (&None, false),
        };
        let Some(line) = line else { return };
        out.extend_from_slice(line.method.as_bytes());
        out.push(b' ');
        render(&line.target, records, replicas, index, out);
        // Writing into a `Vec` cannot fail.
        let _ = write!(out, " HTTP/1.1\r\n{head}");
        for (name, value) in &self.headers {
            let _ = write!(out, "{name}: ");
            render(value, records, replicas, index, out);
            out.extend_from_slice(b"\r\n");
        }
        if has_body {
            if let Some(kind) = &self.content_type {
                let _ = write!(out, "Content-Type: {kind}\r\n");
            }
            let bytes = self.body_bytes(records.value_size(index)) + self.digits(records, index);
            let _ = write!(out, "Content-Length: {bytes}\r\n\r\n");
            render(&self.body, records, replicas, index, out);
        } else {
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Whether `body` is that of a PUT of key `index`.
    pub(super) fn is_body(&self, records: &Records, index: u64, body: &[u8]) -> bool {
        if self.body == [Part::Value] {
            return records.is_value(index, body);
        }
        let mut wanted = Vec::new();
        self.write_body(records, index, &mut wanted);
        wanted == body
    }

    /// Appends the body of a PUT of key `index`.
    pub(super) fn write_body(&self, records: &Records, index: u64, out: &mut Vec<u8>) {
        render(&self.body, records, None, index, out);
    }

    /// The digits of all numbers in the body of request `index`.
    fn digits(&self, records: &Records, index: u64) -> usize {
        let digits = self.body.iter().map(|part| match part {
            Part::Number(number) => number.text(index, records.dataset.seed).len(),
            _ => 0,
        });
        digits.sum()
    }

    /// The size of the body of a value of `value_bytes`, without the digits of numbers.
    pub(super) fn body_bytes(&self, value_bytes: usize) -> usize {
        let sizes = self.body.iter().map(|part| match part {
            Part::Text(text) => text.len(),
            Part::Value => value_bytes,
            Part::ValueHex => 2 * value_bytes,
            Part::Key | Part::Ack | Part::From | Part::Number(_) => 0,
        });
        sizes.sum()
    }
}

impl Line {
    fn read(text: &str) -> Result<Self, String> {
        let (method, target) = text.split_once(' ').ok_or("wanted METHOD PATH, as in GET /items/{key}")?;
        check_method(method)?;
        check_target(target)?;
        let target = parts(target, &[("key", Part::Key), ("ack", Part::Ack), ("from", Part::From)])?;
        if !target.contains(&Part::Key) {
            return Err("{key} is missing: requests are for keys".into());
        }
        Ok(Self { method: method.into(), target })
    }
}

fn check_method(method: &str) -> Result<(), String> {
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(format!("{method:?} is no method"));
    }
    Ok(())
}

fn check_target(target: &str) -> Result<(), String> {
    if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{target:?} is no path: it begins with /, and has no spaces"));
    }
    Ok(())
}

/// Splits `text` at its placeholders, the names of `known`.
fn parts(text: &str, known: &[(&str, Part)]) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('{') {
        plain.push_str(before);
        let name = from.split('}').next().filter(|name| name.len() < from.len()).unwrap_or_default();
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        if !is_name {
            plain.push('{');
            rest = from;
            continue;
        }
        let Some((_, part)) = known.iter().find(|(known, _)| *known == name) else {
            let known: Vec<String> = known.iter().map(|(name, _)| format!("{{{name}}}")).collect();
            return Err(format!("{{{name}}} is not known here; known are {}", known.join(", ")));
        };
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(part.clone());
        rest = from.get(name.len() + 1..).unwrap_or_default();
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

fn render(parts: &[Part], records: &Records, replicas: Option<Replicas>, index: u64, out: &mut Vec<u8>) {
    for part in parts {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Key => records.write_key(index, out),
            Part::Number(number) => {
                out.extend_from_slice(number.text(index, records.dataset.seed).as_bytes());
            }
            Part::Ack => drop(write!(out, "{}", replicas.map_or(0, Replicas::ack))),
            Part::From => drop(write!(out, "{}", replicas.map_or(0, Replicas::from))),
            Part::Value => records.write_value(index, out),
            Part::ValueHex => {
                let mut value = Vec::new();
                records.write_value(index, &mut value);
                for byte in value {
                    let _ = write!(out, "{byte:02x}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;

    const RECORDS: Records = Records {
        dataset: Dataset { keys: 10, value_bytes: 4, seed: 1 },
        key_bytes: None,
        value_bytes: None,
    };

    fn texts() -> TemplateTexts {
        TemplateTexts {
            put: Some("POST /items/{key}?ack={ack}".into()),
            get: Some("GET /items/{key}".into()),
            ..TemplateTexts::default()
        }
    }

    fn written(texts: &TemplateTexts, action: Action) -> String {
        let mut out = Vec::new();
        let template = Template::read(texts).unwrap();
        template.write(&RECORDS, Replicas::new(2, 3), "Host: h:1\r\n", (action, 7), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Goal: requests are those of the template, with lengths that are true. Method: the whole texts.
    #[test]
    fn requests_are_written() {
        let mut value = Vec::new();
        RECORDS.write_value(7, &mut value);
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        let mut texts = texts();
        texts.body = Some("{\"v\": \"{value-hex}\"}".into());
        texts.content_type = Some("application/json".into());
        let expect = format!(
            "POST /items/key-000000000007?ack=2 HTTP/1.1\r\nHost: h:1\r\nContent-Type: application/json\r\n\
             Content-Length: 17\r\n\r\n{{\"v\": \"{hex}\"}}"
        );
        assert_eq!(written(&texts, Action::Put), expect);
        assert_eq!(written(&texts, Action::Get), "GET /items/key-000000000007 HTTP/1.1\r\nHost: h:1\r\n\r\n");
        let template = Template::read(&texts).unwrap();
        assert!(template.is_body(&RECORDS, 7, format!("{{\"v\": \"{hex}\"}}").as_bytes()));
        assert!(!template.is_body(&RECORDS, 8, format!("{{\"v\": \"{hex}\"}}").as_bytes()));
        assert!(!template.is_body(&RECORDS, 7, hex.as_bytes()));
        texts.body = None;
        assert!(Template::read(&texts).unwrap().is_body(&RECORDS, 7, &value));
    }

    /// Goal: success is what the file says. Method: with and without a list.
    #[test]
    fn statuses_are_judged() {
        let mut texts = texts();
        let is_ok = |texts: &TemplateTexts, status| Template::read(texts).unwrap().is_ok(status);
        assert!(is_ok(&texts, 204) && !is_ok(&texts, 304) && !is_ok(&texts, 199));
        texts.ok = Some([200, 304].into());
        assert!(is_ok(&texts, 304) && !is_ok(&texts, 204));
    }

    /// Goal: mistakes are named. Method: one each.
    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, expect: &str| {
            let error = Template::read(&TemplateTexts { put: Some(text.into()), ..texts() }).unwrap_err();
            assert!(error.contains(expect) && error.starts_with("target.put"), "{text}: {error}");
        };
        check("/items/{key}", "wanted METHOD PATH");
        check("put /items/{key}", "is no method");
        check("PUT items/{key}", "is no path");
        check("PUT /items/{key} HTTP/1.0\r\nX: y", "is no path");
        check("PUT /items", "{key} is missing");
        check("PUT /items/{key}/{value}", "{value} is not known here; known are {key}, {ack}, {from}");
        let error = Template::read(&TemplateTexts { body: Some("{key}".into()), ..texts() }).unwrap_err();
        assert!(error.contains("target.body"), "{error}");
    }

    /// Goal: a load whose requests the template does not have is refused. Method: one that is missing, one whose
    /// quorum is missing, scans.
    #[test]
    fn loads_are_checked() {
        let template = Template::read(&texts()).unwrap();
        let check = |operation, mix: Option<&Mix>, replicas| {
            template.check(operation, mix, replicas).map_err(|error| error.to_string())
        };
        let quorum = Replicas::new(1, 1);
        assert_eq!(check(Operation::Put, None, quorum), Ok(()));
        assert_eq!(check(Operation::Get, None, None), Ok(()));
        assert!(check(Operation::Put, None, None).unwrap_err().contains("{ack}"));
        assert!(check(Operation::Put, Some(&Mix::deletes()), quorum).unwrap_err().contains("target.delete"));
        assert!(check(Operation::Scan { records: None }, None, quorum).unwrap_err().contains("no scans"));
    }
}
