//! `/openapi.json`: the contract as programs read it, written by hand in `openapi.json`.
//!
//! Nothing is generated. The tests below compare the document with the code, so that neither changes alone. Checks that
//! need answers (schemas, and which operation returns which status) are in `make openapi`, against running nodes.
//! `docs/http-api.md` is the text for people.

/// The document.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes::Path;
    use crate::http::target::{self, TargetError};
    use crate::http::{cluster, cut, restore};
    use crate::metrics::STATUSES;
    use http::StatusCode;
    use serde_json::Value;
    use std::collections::{BTreeMap, BTreeSet};

    const ERROR_SOURCE: &str = include_str!("error.rs");
    const HANDLER_SOURCE: &str = include_str!("handler.rs");
    const CONSOLE_SOURCE: &str = include_str!("console.rs");
    const VALUES_SOURCE: &str = include_str!("values.rs");

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    /// The target of `value`'s reference, or `value` itself if it is not a reference.
    fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
            None => value,
        }
    }

    /// The operations of the document: path, method in capitals, operation.
    fn operations(document: &Value) -> Vec<(&str, String, &Value)> {
        let paths = document["paths"].as_object().unwrap();
        paths
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().iter();
                methods
                    .map(move |(method, operation)| (path.as_str(), method.to_ascii_uppercase(), operation))
            })
            .collect()
    }

    /// The pieces of `source`, without its tests, that follow `prefix` and consist of characters that `is_part`
    /// accepts.
    fn scan<'a>(source: &'a str, prefix: &'a str, is_part: fn(char) -> bool) -> BTreeSet<&'a str> {
        let code = source.split("#[cfg(test)]").next().unwrap();
        let tails = code.split(prefix).skip(1);
        tails
            .map(|tail| tail.split(|c| !is_part(c)).next().unwrap())
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// The statuses that the code names: as constants, and in the fixed answers.
    fn statuses_of_the_code() -> BTreeSet<u16> {
        let named: BTreeMap<String, u16> = (100..600)
            .filter_map(|code| {
                let reason = StatusCode::from_u16(code).unwrap().canonical_reason()?;
                Some((reason.to_ascii_uppercase().replace([' ', '-'], "_"), code))
            })
            .collect();
        let constants = [ERROR_SOURCE, HANDLER_SOURCE, CONSOLE_SOURCE, VALUES_SOURCE]
            .into_iter()
            .flat_map(|source| scan(source, "StatusCode::", |c| c.is_ascii_uppercase() || c == '_'));
        let mut statuses: BTreeSet<u16> = constants.map(|name| named[name]).collect();
        let literal = |prefix| scan(ERROR_SOURCE, prefix, |c| c.is_ascii_digit());
        statuses.extend(literal("line: \"").iter().map(|code| code.parse::<u16>().unwrap()));
        // A new response has status 200, so no constant names it.
        statuses.insert(200);
        statuses
    }

    /// The document has every path with its methods, and nothing else.
    #[test]
    fn paths_and_methods_are_those_of_the_code() {
        let document = document();
        let mut documented: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (path, method, _) in operations(&document) {
            documented.entry(path).or_default().insert(method);
        }
        let known: BTreeMap<&str, BTreeSet<String>> = Path::ALL
            .iter()
            .map(|(text, path)| (*text, path.methods().iter().map(|method| (*method).to_owned()).collect()))
            .collect();
        assert_eq!(documented, known);
    }

    /// The document has every parameter that a parser knows, and no other; `ttl` only for PUT,
    /// `add` and `append` only for POST.
    #[test]
    fn parameters_are_those_of_the_parsers() {
        let document = document();
        for (text, method, operation) in operations(&document) {
            let query = Some("no-such-parameter=");
            let error = match Path::parse(text).unwrap() {
                Path::Entity => target::parse_entity(query).err(),
                Path::Entities => target::parse_range(query).err(),
                Path::Explain => target::parse_explain(query).err(),
                Path::Converged => target::parse_converged(query).err(),
                Path::Repair => target::parse_repair(query, 1).err(),
                Path::ClusterPlan => cluster::parse_plan(query).err(),
                Path::ClusterApply => cluster::parse_apply(query).err(),
                Path::Cut if method == "POST" => cut::parse_step(query).err(),
                Path::CutRecords => cut::parse_records(query).err(),
                Path::Restore => restore::parse(query).err(),
                Path::Topology => target::parse_ranks(query).err(),
                Path::Profile => target::parse_profile(query).err(),
                Path::WorkerPause => target::parse_pause(query).err(),
                Path::Status => target::parse_status(query).err(),
                Path::History => target::parse_history(query).err(),
                Path::Metrics
                | Path::Cut
                | Path::Peer
                | Path::Batch
                | Path::OpenApi
                | Path::Workers
                | Path::WorkerResume
                | Path::Root
                | Path::Console
                | Path::ConsoleScript
                | Path::ConsoleStyle
                | Path::ConsoleProfile
                | Path::Settings
                | Path::Cluster
                | Path::ClusterCancel => target::parse_nothing(query).err(),
            };
            let Some(TargetError::UnknownParameter { known, .. }) = error else {
                panic!("{text}: {error:?}")
            };
            let words = known.split(|c: char| !c.is_ascii_alphabetic());
            let known: BTreeSet<&str> = words
                .filter(|word| !["", "or", "and", "none"].contains(word))
                .filter(|word| *word != "ttl" || method == "PUT")
                .filter(|word| !["add", "append"].contains(word) || method == "POST" || text != "/v0/entity")
                .collect();
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let documented: BTreeSet<&str> = parameters
                .map(|parameter| resolve(&document, parameter))
                // A worker's name is a part of the path, and conditions are headers: no parser of queries reads them.
                .filter(|parameter| !["path", "header"].contains(&parameter["in"].as_str().unwrap()))
                .inspect(|parameter| assert_eq!(parameter["in"], "query"))
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(documented, known, "{method} {text}");
        }
    }

    /// The document has every status that the code can answer with, and no other; all but those to peers are counted.
    #[test]
    fn statuses_are_those_of_the_code() {
        let document = document();
        let mut documented = BTreeSet::new();
        for (text, method, operation) in operations(&document) {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let status: u16 = status.parse().unwrap();
                let shared = &resolve(&document, response)["x-status"];
                assert!(shared.is_null() || *shared == status, "{method} {text} {status}: {shared}");
                documented.insert(status);
            }
        }
        // No operation documents 405: each has only its own methods.
        documented.insert(405);
        let components = document["components"]["responses"].as_object().unwrap();
        let failures: BTreeSet<u16> = components
            .values()
            .map(|response| u16::try_from(response["x-status"].as_u64().unwrap()).unwrap())
            .collect();
        let known = statuses_of_the_code();
        assert_eq!(documented, known);
        assert_eq!(failures, known.range(400..).copied().collect());
        let counted = STATUSES.into_iter().filter(|status| *status != 0).chain([101, 426]);
        assert_eq!(known, counted.collect());
    }

    /// Patterns of parameters accept what the parsers accept. There is no pattern engine here, so this test compares
    /// the two patterns that once accepted a zero with reviewed texts. `make openapi` sends what the patterns generate.
    #[test]
    fn patterns_of_parameters_take_no_zero() {
        let document = document();
        let pattern = |name: &str| {
            document["components"]["parameters"][name]["schema"]["pattern"].as_str().unwrap().to_owned()
        };
        assert_eq!(
            pattern("Ttl"),
            r"^(0*[1-9][0-9]*(\.[0-9]{1,18})?|0+\.[0-9]{0,17}[1-9][0-9]{0,17})(us|ms|s|m|h|d)?$"
        );
        assert_eq!(pattern("Replicas"), "^0*[1-9][0-9]{0,4}/0*[1-9][0-9]{0,4}$");
        for zero in ["0", "00", "0s", "0ms", "0d", "0.0", "0.000"] {
            let query = format!("id=a&ttl={zero}");
            assert!(target::parse_entity(Some(&query)).is_err(), "{zero}");
        }
        for above in ["1", "01", "1s", "007d", "10ms", "1.0", "0.5", "00.000000000000000001"] {
            let query = format!("id=a&ttl={above}");
            assert!(target::parse_entity(Some(&query)).is_ok(), "{above}");
        }
    }

    /// The document has every error code, at its status.
    #[test]
    fn error_codes_are_those_of_the_code() {
        let document = document();
        let code = ERROR_SOURCE.split_whitespace().collect::<Vec<_>>().join(" ");
        let pairs: BTreeSet<(String, String)> = code
            .split("Self::new(")
            .skip(1)
            .filter_map(|call| {
                let (status, rest) = call.trim_start().strip_prefix("StatusCode::")?.split_once(", \"")?;
                Some((status.to_owned(), rest.split('"').next()?.to_owned()))
            })
            .collect();
        // At least as many as there are calls: the search has missed none.
        assert!(pairs.len() >= 15, "{pairs:?}");
        let codes: BTreeSet<&str> = pairs.iter().map(|(_, code)| code.as_str()).collect();
        let listed = document["components"]["schemas"]["Error"]["properties"]["error"]["enum"].as_array();
        let listed: BTreeSet<&str> = listed.unwrap().iter().map(|code| code.as_str().unwrap()).collect();
        assert_eq!(listed, codes);
        for (status, code) in &pairs {
            let told = document["components"]["responses"].as_object().unwrap().values().any(|response| {
                let number = u16::try_from(response["x-status"].as_u64().unwrap()).unwrap();
                let reason = StatusCode::from_u16(number).unwrap().canonical_reason().unwrap();
                reason.to_ascii_uppercase().replace(' ', "_") == *status
                    && response["description"].as_str().unwrap().contains(&format!("`{code}`"))
            });
            assert!(told, "{status} {code}");
        }
    }

    /// The document has every header of ours.
    #[test]
    fn headers_are_those_of_the_code() {
        let document = document();
        let headers = document["components"]["headers"].as_object().unwrap().keys();
        let documented: BTreeSet<String> = headers
            .map(|name| name.to_ascii_lowercase())
            .filter(|name| name.starts_with("kvorum-"))
            .collect();
        let inserted: BTreeSet<String> = [ERROR_SOURCE, HANDLER_SOURCE]
            .into_iter()
            .flat_map(|source| scan(source, "insert(\"kvorum", |c| c.is_ascii_lowercase() || c == '-'))
            .map(|rest| format!("kvorum{rest}"))
            .collect();
        assert_eq!(documented, inserted);
    }
}
