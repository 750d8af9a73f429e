//! Statements of a script, followed as they are read: what is left of them is one request with numbers in it.
//!
//! The function `request` is followed twice. The first time tells by how much each counter goes on from one request to
//! the next; the second makes the texts with it.

use std::collections::{BTreeMap, BTreeSet};

use super::ScriptError;
use super::tokens::{Token, tokens};
use crate::load::headers::check_name;
use crate::load::template::{Number, Part, Template};

/// How deep expressions may lie in each other.
const DEPTH_MAX: usize = 64;

/// The longest text that `string.rep` makes, in bytes.
const REPEATED_MAX: usize = 64 << 20;

/// The value of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Nil,
    Text(Vec<Part>),
    Number(Number),
    /// The number of a variable that goes on from request to request: its value, and whose it is.
    Counter(Number, String),
}

/// What a script has said so far: variables by name, and `wrk.method` and the like by that name.
#[derive(Debug, Clone, Default)]
struct State {
    values: BTreeMap<String, Value>,
    headers: BTreeMap<String, Vec<Part>>,
    /// How much each counter grows from one request to the next.
    steps: BTreeMap<String, i64>,
    /// Names that `request` has read before it assigned them, with the line.
    read: BTreeMap<String, usize>,
    assigned: BTreeSet<String>,
    is_in_request: bool,
    draws: u64,
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    depth: usize,
    state: State,
}

/// The texts of a request: method, path, body.
type Request = (Value, Value, Value);

/// Reads a whole script.
pub(super) fn read(text: &str, path: &str) -> Result<Template, ScriptError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0, state: State::default() };
    let mut request = None;
    while parser.peek() != &Token::End {
        if let Some(body) = parser.function_begin()? {
            if request.is_some() {
                return Err(parser.fail("`request` is defined twice"));
            }
            request = Some(parser.request(body)?);
        } else {
            parser.statement()?;
        }
    }
    let line = parser.line();
    let (method, target, body) = match request {
        Some(request) => request,
        None => (parser.said("wrk.method"), parser.said("wrk.path"), parser.said("wrk.body")),
    };
    let fail = |why: String| ScriptError { line, why };
    let method = match method {
        Value::Nil => "GET".to_owned(),
        Value::Text(parts) => match parts.as_slice() {
            [Part::Text(method)] => method.clone(),
            _ => return Err(fail("the method is not the same for all requests".to_owned())),
        },
        Value::Number(_) | Value::Counter(..) => return Err(fail("the method is a number".to_owned())),
    };
    let target = text_of(target).unwrap_or_else(|| vec![Part::Text(path.to_owned())]);
    let headers = std::mem::take(&mut parser.state.headers);
    Template::scripted(method, target, text_of(body), headers).map_err(fail)
}

/// The parts of a text or number; none of nil.
fn text_of(value: Value) -> Option<Vec<Part>> {
    match value {
        Value::Nil => None,
        Value::Text(parts) => Some(parts),
        Value::Number(number) | Value::Counter(number, _) => Some(vec![Part::Number(number)]),
    }
}

/// A whole number that is the same for all requests.
fn constant(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) | Value::Counter(number, _) => number.constant(),
        Value::Nil | Value::Text(_) => None,
    }
}

/// Joins texts, so that equal scripts have equal parts.
fn joined(mut left: Vec<Part>, right: Vec<Part>) -> Vec<Part> {
    for part in right.into_iter().map(settled) {
        match (left.last_mut(), part) {
            (_, Part::Text(text)) if text.is_empty() => {}
            (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
            (_, part) => left.push(part),
        }
    }
    left
}

/// A number that is always the same, as text.
fn settled(part: Part) -> Part {
    match part {
        Part::Number(number) => {
            number.constant().map_or(Part::Number(number), |_| Part::Text(number.text(0, 0)))
        }
        part => part,
    }
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(_, token)| token)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |&(line, _)| line)
    }

    fn fail(&self, why: impl Into<String>) -> ScriptError {
        ScriptError { line: self.line(), why: why.into() }
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn takes(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.peek(), Token::Sign(found) if *found == sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn takes_name(&mut self, name: &str) -> bool {
        let is_next = matches!(self.peek(), Token::Name(found) if found == name);
        self.at += usize::from(is_next);
        is_next
    }

    fn want(&mut self, sign: &str) -> Result<(), ScriptError> {
        if self.takes(sign) {
            return Ok(());
        }
        Err(self.fail(format!("{} where `{sign}` is needed", self.peek().shown())))
    }

    fn want_name(&mut self) -> Result<String, ScriptError> {
        match self.peek().clone() {
            Token::Name(name) => {
                self.at += 1;
                Ok(name)
            }
            other => Err(self.fail(format!("{} where a name is needed", other.shown()))),
        }
    }

    /// The value of a name that has been assigned; nil of another.
    fn said(&self, name: &str) -> Value {
        self.state.values.get(name).cloned().unwrap_or(Value::Nil)
    }

    /// Takes `request = function()` or `function request()`, and returns where its body begins. None: something else
    /// follows.
    fn function_begin(&mut self) -> Result<Option<usize>, ScriptError> {
        let begun = self.at;
        let is_local = self.takes_name("local");
        let name = if self.takes_name("function") {
            Some(self.want_name()?)
        } else if let Token::Name(name) = self.peek().clone() {
            self.at += 1;
            (self.takes("=") && self.takes_name("function")).then_some(name)
        } else {
            None
        };
        let Some(name) = name else {
            self.at = begun;
            return Ok(None);
        };
        if name != "request" || is_local {
            self.at = begun;
            return Err(self.fail(format!(
                "the function `{name}` is not understood: only `request` is, because no Lua runs here"
            )));
        }
        self.want("(")?;
        self.want(")")?;
        Ok(Some(self.at))
    }

    /// Follows the body of `request`, which begins at `body`, twice.
    fn request(&mut self, body: usize) -> Result<Request, ScriptError> {
        let before = self.state.clone();
        self.follow(body)?;
        let mut steps = BTreeMap::new();
        for (name, &line) in self.state.read.iter().filter(|(name, _)| self.state.assigned.contains(*name)) {
            let (begin, end) = (before.values.get(name), self.state.values.get(name));
            let step = match (begin, end) {
                (Some(Value::Number(begin)), Some(Value::Counter(end, whose))) if whose == name => {
                    end.constant().zip(begin.constant()).map(|(end, begin)| end - begin)
                }
                _ => None,
            };
            let why =
                format!("`{name}` goes on from request to request, and not as `{name} = {name} + NUMBER`");
            steps.insert(name.clone(), step.ok_or(ScriptError { line, why })?);
        }
        self.state = State { steps, ..before };
        self.follow(body)
    }

    fn follow(&mut self, body: usize) -> Result<Request, ScriptError> {
        self.at = body;
        self.state.is_in_request = true;
        let request = loop {
            if self.takes_name("return") {
                break self.format()?;
            }
            if self.peek() == &Token::Name("end".to_owned()) {
                return Err(self.fail("`request` ends without `return wrk.format(…)`"));
            }
            self.statement()?;
        };
        self.takes(";");
        if !self.takes_name("end") {
            return Err(self.fail(format!("{} where the `end` of `request` is needed", self.peek().shown())));
        }
        self.state.is_in_request = false;
        Ok(request)
    }

    /// `wrk.format(METHOD, PATH, nil, BODY)`, each with the script's value as its default.
    fn format(&mut self) -> Result<Request, ScriptError> {
        let line = self.line();
        if !(self.takes_name("wrk") && self.takes(".") && self.takes_name("format") && self.takes("(")) {
            let why = "only `return wrk.format(METHOD, PATH, nil, BODY)` is understood".to_owned();
            return Err(ScriptError { line, why });
        }
        let mut given = Vec::new();
        while !self.takes(")") {
            if given.len() == 2 && self.takes_name("wrk") {
                // `wrk.headers` are the headers without it, too.
                if !(self.takes(".") && self.takes_name("headers")) {
                    return Err(self.fail("the headers of `wrk.format` are nil or wrk.headers here"));
                }
                given.push(Value::Nil);
            } else {
                given.push(self.expression()?);
            }
            if !self.takes(",") {
                self.want(")")?;
                break;
            }
        }
        if given.len() > 4 || given.get(2).is_some_and(|headers| *headers != Value::Nil) {
            let why = "`wrk.format` has METHOD, PATH, headers (nil or wrk.headers) and BODY".to_owned();
            return Err(ScriptError { line, why });
        }
        let mut of = |at: usize, name: &str| match given.get(at) {
            Some(Value::Nil) | None => self.variable(name),
            Some(value) => value.clone(),
        };
        Ok((of(0, "wrk.method"), of(1, "wrk.path"), of(3, "wrk.body")))
    }

    /// One assignment, or `math.randomseed(…)`.
    fn statement(&mut self) -> Result<(), ScriptError> {
        if self.takes(";") {
            return Ok(());
        }
        let (begun, line) = (self.at, self.line());
        let refuse = |why: String| Err(ScriptError { line, why });
        let is_local = self.takes_name("local");
        let name = match self.peek().clone() {
            Token::Name(name) => name,
            other => return refuse(format!("{} is no assignment", other.shown())),
        };
        self.at += 1;
        if let "if" | "for" | "while" | "repeat" | "do" | "function" | "goto" | "return" | "break" =
            name.as_str()
        {
            return refuse(format!(
                "`{name}` is not understood: no Lua runs here, only assignments are read"
            ));
        }
        if name == "math" && self.takes(".") && self.takes_name("randomseed") {
            return self.skip_call();
        }
        if name == "wrk" {
            return self.wrk_statement(line);
        }
        if !self.takes("=") {
            self.at = begun + usize::from(is_local) + 1;
            return refuse(format!("`{name}` {} is no assignment", self.peek().shown()));
        }
        let value = self.expression()?;
        self.assign(&name, value);
        Ok(())
    }

    /// An assignment to a part of `wrk`, whose name has been taken.
    fn wrk_statement(&mut self, line: usize) -> Result<(), ScriptError> {
        self.want(".")?;
        let field = self.want_name()?;
        let refuse = |why: String| Err(ScriptError { line, why });
        match field.as_str() {
            "method" | "path" | "body" => {
                self.want("=")?;
                let value = self.expression()?;
                self.assign(&format!("wrk.{field}"), value);
                Ok(())
            }
            "headers" if self.takes("[") || self.takes(".") => {
                let header = match self.next() {
                    Token::Text(name) => {
                        self.want("]")?;
                        name
                    }
                    Token::Name(name) if !self.takes("]") => name,
                    other => return refuse(format!("the header {} is no name in quotes", other.shown())),
                };
                self.want("=")?;
                let value = text_of(self.expression()?).unwrap_or_default();
                if let Err(why) = check_name(&header) {
                    return refuse(why);
                }
                self.state.headers.insert(header, value);
                Ok(())
            }
            "scheme" | "host" | "port" => {
                refuse(format!("`wrk.{field}`: the URLs of the command line say where requests go"))
            }
            _ => refuse(format!(
                "`wrk.{field}` is not understood here: only wrk.method, wrk.path, wrk.body and wrk.headers[…]"
            )),
        }
    }

    fn assign(&mut self, name: &str, value: Value) {
        if self.state.is_in_request {
            self.state.assigned.insert(name.to_owned());
        }
        self.state.values.insert(name.to_owned(), value);
    }

    /// Reads a name; in `request` a number that it does not assign itself before goes on from request to request.
    fn variable(&mut self, name: &str) -> Value {
        let value = self.said(name);
        if !self.state.is_in_request || self.state.assigned.contains(name) {
            return value;
        }
        let line = self.line();
        self.state.read.entry(name.to_owned()).or_insert(line);
        match value {
            Value::Number(number) => {
                let step = self.state.steps.get(name).copied().unwrap_or(0);
                Value::Counter(number.stepped(step), name.to_owned())
            }
            value => value,
        }
    }

    /// Skips a call whose result is not used: the seed of draws is that of the command line.
    fn skip_call(&mut self) -> Result<(), ScriptError> {
        self.want("(")?;
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Token::Sign("(") => depth += 1,
                Token::Sign(")") => depth -= 1,
                Token::End => return Err(self.fail("a call without its `)`")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Terms joined by `..`.
    fn expression(&mut self) -> Result<Value, ScriptError> {
        if self.depth == DEPTH_MAX {
            return Err(self.fail("too many parentheses in each other"));
        }
        self.depth += 1;
        let value = self.terms();
        self.depth -= 1;
        value
    }

    fn terms(&mut self) -> Result<Value, ScriptError> {
        let first = self.sum()?;
        if !matches!(self.peek(), Token::Sign("..")) {
            return Ok(first);
        }
        let fail = |parser: &Self| parser.fail("nil cannot be joined to a text");
        let mut parts = joined(Vec::new(), text_of(first).ok_or_else(|| fail(self))?);
        while self.takes("..") {
            let next = self.sum()?;
            parts = joined(parts, text_of(next).ok_or_else(|| fail(self))?);
        }
        Ok(Value::Text(parts))
    }

    /// A term, with whole numbers added to it.
    fn sum(&mut self) -> Result<Value, ScriptError> {
        let mut value = self.term()?;
        loop {
            let sign = match self.peek() {
                Token::Sign("+") => 1,
                Token::Sign("-") => -1,
                Token::Sign(sign @ ("*" | "/" | "%" | "^" | "==" | "~=" | "<" | ">" | "<=" | ">=")) => {
                    return Err(self.fail(format!("`{sign}` is not understood: only + and - NUMBER are")));
                }
                _ => return Ok(value),
            };
            self.at += 1;
            let by = self.term()?;
            let by = constant(&by)
                .ok_or_else(|| self.fail("only whole numbers that do not change can be added"))?;
            let add = |number: Number| number.plus(sign * by);
            value = match value {
                Value::Number(number) => Value::Number(add(number)),
                Value::Counter(number, whose) => Value::Counter(add(number), whose),
                Value::Nil | Value::Text(_) => {
                    return Err(self.fail("a number is added to what is no number"));
                }
            };
        }
    }

    fn term(&mut self) -> Result<Value, ScriptError> {
        let line = self.line();
        match self.next() {
            Token::Text(text) => Ok(Value::Text(vec![Part::Text(text)])),
            Token::Number(number) => Ok(Value::Number(Number::of(number))),
            Token::Sign("(") => {
                let value = self.expression()?;
                self.want(")")?;
                Ok(value)
            }
            Token::Sign("-") => match self.next() {
                Token::Number(number) => Ok(Value::Number(Number::of(-number))),
                other => Err(ScriptError { line, why: format!("`-` {} is not understood", other.shown()) }),
            },
            Token::Name(name) => match name.as_str() {
                "nil" => Ok(Value::Nil),
                "wrk" | "math" | "string" => {
                    self.want(".")?;
                    let field = self.want_name()?;
                    self.member(line, &format!("{name}.{field}"))
                }
                "tostring" | "tonumber" => {
                    self.want("(")?;
                    let value = self.expression()?;
                    self.want(")")?;
                    Ok(value)
                }
                _ if matches!(self.peek(), Token::Sign("(" | "." | "[" | ":")) => {
                    Err(ScriptError { line, why: format!("`{name}` is not understood: no Lua runs here") })
                }
                _ if !self.state.values.contains_key(&name) => {
                    Err(ScriptError { line, why: format!("`{name}` has no value here") })
                }
                _ => Ok(self.variable(&name)),
            },
            other => Err(ScriptError { line, why: format!("{} is not understood here", other.shown()) }),
        }
    }

    /// The value of `wrk.path`, or of a call of `math.random` and the like.
    fn member(&mut self, line: usize, name: &str) -> Result<Value, ScriptError> {
        let refuse = |why: String| Err(ScriptError { line, why });
        match name {
            "wrk.method" | "wrk.path" | "wrk.body" => return Ok(self.variable(name)),
            "math.random" | "string.format" | "string.rep" => {}
            _ => return refuse(format!("`{name}` is not understood: no Lua runs here")),
        }
        self.want("(")?;
        let mut given = Vec::new();
        while !self.takes(")") {
            given.push(self.expression()?);
            if !self.takes(",") {
                self.want(")")?;
                break;
            }
        }
        match (name, given.as_slice()) {
            ("math.random", bounds) if (1..=2).contains(&bounds.len()) => {
                let bounds: Option<Vec<i64>> = bounds.iter().map(constant).collect();
                let (low, high) = match bounds.as_deref() {
                    Some(&[high]) => (1, high),
                    Some(&[low, high]) => (low, high),
                    _ => return refuse("the bounds of math.random change from request to request".into()),
                };
                if !self.state.is_in_request {
                    return refuse("math.random is only understood within `request`".into());
                }
                if low > high {
                    return refuse(format!("math.random from {low} to {high} is empty"));
                }
                self.state.draws += 1;
                Ok(Value::Number(Number::random(low, high, self.state.draws)))
            }
            ("string.rep", [Value::Text(parts), times]) => {
                let times = constant(times).and_then(|times| usize::try_from(times).ok());
                let (Some(times), [Part::Text(text)]) = (times, parts.as_slice()) else {
                    return refuse("string.rep is only understood of a text that does not change".into());
                };
                if text.len().saturating_mul(times) > REPEATED_MAX {
                    return refuse(format!("string.rep makes more than {REPEATED_MAX} bytes"));
                }
                Ok(Value::Text(vec![Part::Text(text.repeat(times))]))
            }
            ("string.format", [Value::Text(parts), values @ ..]) => match parts.as_slice() {
                [Part::Text(text)] => {
                    formatted(text, values).map_or_else(refuse, |parts| Ok(Value::Text(parts)))
                }
                _ => refuse("the first argument of string.format is a text that does not change".into()),
            },
            _ => refuse(format!("the arguments of `{name}` are not understood")),
        }
    }
}

/// `string.format` with `%s`, `%d`, `%5d`, `%05d` and `%%`.
fn formatted(text: &str, values: &[Value]) -> Result<Vec<Part>, String> {
    let (mut parts, mut values) = (Vec::new(), values.iter());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        parts = joined(parts, vec![Part::Text(before.to_owned())]);
        if let Some(behind) = behind.strip_prefix('%') {
            parts = joined(parts, vec![Part::Text("%".to_owned())]);
            rest = behind;
            continue;
        }
        let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
        let (width, behind) = behind.split_at(end);
        let value = values.next().cloned().ok_or("string.format has fewer values than its text asks for")?;
        let kind = behind.chars().next().unwrap_or(' ');
        let part = match (kind, value) {
            ('d' | 'i', Value::Number(number) | Value::Counter(number, _)) => {
                let zeros = width.starts_with('0');
                if !(width.is_empty() || zeros) {
                    return Err(format!("%{width}{kind} is not understood: only %d and %0{width}{kind} are"));
                }
                Part::Number(number.padded(width.parse().unwrap_or(0)))
            }
            ('s', Value::Number(number) | Value::Counter(number, _)) if width.is_empty() => {
                Part::Number(number)
            }
            ('s', Value::Text(more)) if width.is_empty() => {
                parts = joined(parts, more);
                Part::Text(String::new())
            }
            _ => return Err(format!("%{width}{kind} is not understood with this value")),
        };
        parts = joined(parts, vec![part]);
        rest = behind.get(kind.len_utf8()..).unwrap_or_default();
    }
    Ok(joined(parts, vec![Part::Text(rest.to_owned())]))
}
