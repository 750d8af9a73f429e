//! Tests of scripts: the requests that come of them, and the lines that are refused.

use crate::dataset::{Dataset, Records};
use crate::load::mix::Action;
use crate::load::script::read;

const RECORDS: Records = Records {
    dataset: Dataset { keys: 1_000_000, value_bytes: 4, seed: 1 },
    key_bytes: None,
    value_bytes: None,
};

/// The whole request with `number` of the script.
fn request(script: &str, number: u64) -> String {
    let template = read(script, "/from-url").unwrap_or_else(|error| panic!("{error}: {script}"));
    let mut out = Vec::new();
    template.write(&RECORDS, None, &template.head("h:1", &[]), (Action::Put, number), &mut out);
    String::from_utf8(out).unwrap()
}

/// Goal: assignments make the request, and wrk's defaults the rest. Method: whole requests.
#[test]
fn assignments_make_a_request() {
    let script = "-- example script\nwrk.method = \"POST\"\nwrk.body   = 'a=1&b=\\'2\\''\n\
                  wrk.headers[\"Content-Type\"] = \"application/x-www-form-urlencoded\"\n";
    let expect = "POST /from-url HTTP/1.1\r\nHost: h:1\r\nContent-Type: application/x-www-form-urlencoded\r\n\
                  Content-Length: 9\r\n\r\na=1&b='2'";
    assert_eq!(request(script, 7), expect);
    assert_eq!(request("", 0), "GET /from-url HTTP/1.1\r\nHost: h:1\r\n\r\n");
    let script = "--[[ a block\nof text ]] wrk.path = [[/long]] wrk.headers.Host = 'other'; wrk.body = ''";
    assert_eq!(request(script, 0), "GET /long HTTP/1.1\r\nHost: other\r\nContent-Length: 0\r\n\r\n");
}

/// Goal: counters go on from request to request, from their beginning and by their step, whether they are used before
/// or after. Method: scripts as people write them, and three requests of each.
#[test]
fn counters_go_on() {
    let paths = |script: &str| -> Vec<String> {
        let of = |number| request(script, number).split(' ').nth(1).unwrap().to_owned();
        [0, 1, 2].map(of).to_vec()
    };
    let before = "counter = 0\nrequest = function()\n  counter = counter + 1\n  local path = \"/k?id=\" .. counter\n\
                  return wrk.format(\"PUT\", path)\nend";
    assert_eq!(paths(before), ["/k?id=1", "/k?id=2", "/k?id=3"]);
    let after = "local n = 10\nlocal KEYS = 5\nfunction request()\n path = '/' .. n .. '-' .. KEYS\n n = n + 2\n\
                 return wrk.format(nil, path)\nend";
    assert_eq!(paths(after), ["/10-5", "/12-5", "/14-5"]);
    let padded = "i = 8 request = function() i = i + 1 wrk.path = string.format('/key-%03d%%', i) return wrk.format() end";
    assert_eq!(paths(padded), ["/key-009%", "/key-010%", "/key-011%"]);
}

/// Goal: bodies and headers may change, too, with true lengths. Method: a number that becomes longer.
#[test]
fn bodies_have_their_length() {
    let script = "n = 9 request = function()\n wrk.headers['X-Number'] = n\n wrk.body = 'value ' .. tostring(n)\n\
                  n = n + 1\n return wrk.format('PUT', '/k', wrk.headers, wrk.body)\nend";
    let expect = |n: u64, bytes: u64| {
        format!("PUT /k HTTP/1.1\r\nHost: h:1\r\nX-Number: {n}\r\nContent-Length: {bytes}\r\n\r\nvalue {n}")
    };
    assert_eq!(request(script, 0), expect(9, 7));
    assert_eq!(request(script, 1), expect(10, 8));
    let script =
        "body = string.rep('v', 100)\nrequest = function() return wrk.format('PUT', '/k', nil, body) end";
    assert!(request(script, 0).ends_with(&format!("Content-Length: 100\r\n\r\n{}", "v".repeat(100))));
}

/// Goal: random numbers lie between their bounds, follow from the request's number, and one draw is one number.
/// Method: a thousand requests.
#[test]
fn random_numbers_are_drawn() {
    let script = "math.randomseed(os.time())\nrequest = function()\n local id = math.random(3, 5)\n\
                  return wrk.format('PUT', '/' .. id .. '/' .. id .. '/' .. math.random(2))\nend";
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..1000 {
        let text = request(script, number);
        assert_eq!(text, request(script, number));
        let path = text.split(' ').nth(1).unwrap().to_owned();
        let numbers: Vec<u64> = path.split('/').skip(1).map(|number| number.parse().unwrap()).collect();
        assert!(matches!(numbers.as_slice(), &[a @ 3..=5, b, 1..=2] if a == b), "{path}");
        seen.insert(path);
    }
    assert_eq!(seen.len(), 6);
}

/// Goal: whatever is not followed is refused, with its line and the reason. Method: one such line each.
#[test]
fn the_rest_is_refused() {
    let check = |script: &str, expect: &str| {
        let error = read(script, "/").expect_err(script).to_string();
        assert!(error.starts_with(expect), "{script}\n{error}\n{expect}");
    };
    check("\nif true then end", "line 2: `if` is not understood");
    check(
        "wrk.method = 'PUT'\ndone = function(s, l, r) end",
        "line 2: the function `done` is not understood",
    );
    check("function init(args)\nend", "line 1: the function `init` is not understood");
    check("local function request() return wrk.format() end", "line 1: the function `request` is not");
    check("local file = io.open('x')", "line 1: `io` is not understood");
    check("wrk.path = '/' .. os.time()", "line 1: `os` is not understood");
    check("wrk.host = 'x'", "line 1: `wrk.host`: the URLs of the command line");
    check("wrk.thread = 1", "line 1: `wrk.thread` is not understood");
    check("wrk.path = '/' .. missing", "line 1: `missing` has no value here");
    check("x = 1.5", "line 1: `.` is no assignment");
    check("x = 0x10", "line 1: `0x10` is no whole number");
    check("x = 'open", "line 1: a string without its '");
    check("x = 3 * 4", "line 1: `*` is not understood");
    check("x = {}", "line 1: `{` is not understood here");
    check("x = math.random(5)", "line 1: math.random is only understood within `request`");
    check("request = function() return 'GET / HTTP/1.1' end", "line 1: only `return wrk.format(");
    check("request = function()\nwrk.path = '/'\nend", "line 3: `request` ends without");
    check(
        "n = 1 request = function()\n n = n .. 'x'\n return wrk.format() end",
        "line 2: `n` goes on from request",
    );
    check(
        "request = function()\nwrk.path = wrk.path .. 'x'\nreturn wrk.format() end",
        "line 2: nil cannot be joined",
    );
    check(
        "n = 0 request = function()\nn = (n + 1) % 10\nreturn wrk.format() end",
        "line 2: `%` is not understood",
    );
    check("request = function() return wrk.format('HEAD') end", "line 1: HEAD: bench does not read");
    check("request = function() return wrk.format('G T') end", "line 1: \"G T\" is no method");
    check("wrk.path = 'a b'", "line 1: \"a b\" is no path");
    check("wrk.headers['Content-Length'] = '5'", "line 1: header Content-Length: bench decides itself");
    check("wrk.headers['X'] = 'a\\nb'", "line 1: header X: the character");
    check("request = function() return wrk.format('GET', '/', {}) end", "line 1: `{` is not understood");
    let deep = format!("x = {}1{}", "(".repeat(5000), ")".repeat(5000));
    check(&deep, "line 1: too many parentheses");
    check("request = function() n = 1", "line 1: the end of the script is no assignment");
}
