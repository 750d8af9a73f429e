//! The cases of how the end of a body is told: lengths and transfer codings.

use super::Expect::{Bare, Refused, Served};
use super::{Case, case, put, put_chunks, with};

pub(crate) fn lengths() -> Vec<Case> {
    let length = |value: &str, expect| {
        case(
            format!("Content-Length: {value:.30}"),
            put(format!("Content-Length: {value}\r\n"), "abc"),
            expect,
        )
    };
    let mut cases = vec![
        case("no length", put("", ""), Refused(411)),
        // Such a client is likely to send a body all the same: it must not be read as a request.
        case("no length, with a body", put("", "abc"), Refused(411)),
        case("no length in HTTP/1.0", "PUT /v0/entity?id=raw HTTP/1.0\r\n\r\n", Refused(411)),
        length("3", Served(201)),
        length("003", Served(201)),
        length("\t3 \t", Served(201)),
        // Equal lengths may be read as one (RFC 9110, 8.6): two parsers cannot differ about them.
        case("equal lengths", put("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), Served(201)),
        case("different lengths", put("Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"), Bare(400)),
        case(
            "different lengths, larger first",
            put("Content-Length: 4\r\nContent-Length: 3\r\n", "abcd"),
            Bare(400),
        ),
        case(
            "a good and an odd length",
            put("Content-Length: 3\r\nContent-Length: +3\r\n", "abc"),
            Bare(400),
        ),
        case(
            "a length on a GET",
            with("GET /v0/status HTTP/1.1", "Content-Length: 3\r\n", "abc"),
            Served(200),
        ),
        case(
            "a length on a DELETE",
            with("DELETE /v0/entity?id=raw HTTP/1.1", "Content-Length: 3\r\n", "abc"),
            Served(202),
        ),
        case("one byte over the limit", put("Content-Length: 65537\r\n", [0; 65_537]), Refused(413)),
        case("one byte over the limit, not sent", put("Content-Length: 65537\r\n", ""), Refused(413)),
        case("far over the limit", put("Content-Length: 9223372036854775807\r\n", "abc"), Refused(413)),
        case(
            "over the limit and asked before",
            put("Content-Length: 65537\r\nExpect: 100-continue\r\n", ""),
            Refused(413),
        ),
        case(
            "a length and a chunked body",
            put("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            Refused(400),
        ),
        case(
            "a chunked body and a length",
            put("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            Refused(400),
        ),
        case(
            "a chunked body and an odd length",
            put("Transfer-Encoding: chunked\r\nContent-Length: x\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            Refused(400),
        ),
        case(
            "a chunked body and a length of 0",
            put("transfer-encoding: chunked\r\ncontent-length: 0\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            Refused(400),
        ),
    ];
    for odd in [
        "3, 3",
        "3,4",
        "+3",
        "-1",
        "-0",
        "0x3",
        "3h",
        "3.0",
        "1e1",
        "3 3",
        "",
        " ",
        "٣",
        "\"3\"",
        "3;",
        "3,",
        ",3",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999",
        "NaN",
    ] {
        cases.push(length(odd, Bare(400)));
    }
    for (name, body) in [("no byte", ""), ("part", "ab")] {
        let bytes = put("Content-Length: 3\r\n", body);
        cases.push(Case {
            ends: true,
            ..case(format!("{name} of a body, then the end"), bytes, Refused(400))
        });
    }
    cases
}

pub(crate) fn codings() -> Vec<Case> {
    let whole = "3\r\nabc\r\n0\r\n\r\n";
    let coding = |value: &str, expect| {
        case(
            format!("Transfer-Encoding: {value}"),
            put(format!("Transfer-Encoding: {value}\r\n"), whole),
            expect,
        )
    };
    let mut cases = vec![
        coding("chunked", Served(201)),
        coding("Chunked", Served(201)),
        coding("\t chunked \t", Served(201)),
        // Codings that end in chunked: the body's end is known, its content is not.
        coding("gzip, chunked", Refused(400)),
        coding("chunked, chunked", Refused(400)),
        coding("identity, chunked", Refused(400)),
        coding(", chunked", Refused(400)),
        // Codings that do not end in chunked.
        coding("gzip", Bare(400)),
        coding("identity", Bare(400)),
        coding("chunked, identity", Bare(400)),
        coding("chunked;q=1", Bare(400)),
        coding("xchunked", Bare(400)),
        coding("chunked,", Bare(400)),
        coding("", Bare(400)),
        coding("\"chunked\"", Bare(400)),
        coding("chun ked", Bare(400)),
        coding("\x0bchunked", Bare(400)),
        case(
            "two codings",
            put("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", whole),
            Refused(400),
        ),
        case(
            "two codings, identity first",
            put("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", whole),
            Refused(400),
        ),
        case(
            "two codings, identity last",
            put("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", whole),
            Bare(400),
        ),
        case(
            "a coding in HTTP/1.0",
            with("PUT /v0/entity?id=raw HTTP/1.0", "Transfer-Encoding: chunked\r\n", whole),
            Bare(400),
        ),
        case(
            "a coding and a length in HTTP/1.0",
            with(
                "PUT /v0/entity?id=raw HTTP/1.0",
                "Transfer-Encoding: chunked\r\nContent-Length: 13\r\n",
                whole,
            ),
            Bare(400),
        ),
        case(
            "a coding on a GET",
            with("GET /v0/status HTTP/1.1", "Transfer-Encoding: chunked\r\n", whole),
            Served(200),
        ),
        case(
            "an odd coding on a GET",
            with("GET /v0/status HTTP/1.1", "Transfer-Encoding: gzip\r\n", ""),
            Bare(400),
        ),
        // A header with a similar name is another header.
        case(
            "Transfer_Encoding",
            put("Transfer_Encoding: chunked\r\nContent-Length: 3\r\n", "abc"),
            Served(201),
        ),
        case("a space behind the name", put("Transfer-Encoding : chunked\r\n", whole), Bare(400)),
        case("a folded coding", put("Transfer-Encoding:\r\n chunked\r\n", whole), Bare(400)),
    ];
    let chunks = |name: &str, body: &str, expect| case(format!("chunks: {name}"), put_chunks(body), expect);
    cases.extend([
        chunks("none", "0\r\n\r\n", Served(201)),
        chunks("size in capitals and zeros", "0000A\r\n0123456789\r\n000\r\n\r\n", Served(201)),
        chunks("an extension", "3;a=b\r\nabc\r\n0;c\r\n\r\n", Served(201)),
        chunks("a trailer", "3\r\nabc\r\n0\r\nA: b\r\nC: d\r\n\r\n", Served(201)),
        chunks("several extensions", "3;a;b=c ; d = \"e;f\\\"\"\r\nabc\r\n0\r\n\r\n", Served(201)),
        chunks("a blank before an extension", "3 ;a\r\nabc\r\n0 ;b\r\n\r\n", Served(201)),
        chunks("an extension without a name", "3;\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a last chunk with an extension without a name", "3\r\nabc\r\n0;\r\n\r\n", Refused(400)),
        chunks("an extension's name with a bracket", "3;bad[=x\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("an extension's value with a bracket", "3;bad=[\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("an extension without a value", "3;a=\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("an extension's open quotes", "3;a=\"b\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a blank behind a size", "3 \r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a tab behind a size", "3\t\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a blank behind the last size", "3\r\nabc\r\n0 \r\n\r\n", Refused(400)),
        chunks("a blank behind an extension", "3;a \r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a NUL in an extension's name", "3;a\0\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a NUL in an extension's value", "3;a=\0\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a NUL in quotes", "3;a=\"\0\"\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a DEL in an extension", "3;a=\x7f\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a comma behind a size", "3,a\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a NUL in a trailer", "3\r\nabc\r\n0\r\nA: b\0\r\n\r\n", Refused(400)),
        chunks("a NUL in a trailer's name", "3\r\nabc\r\n0\r\nA\0: b\r\n\r\n", Refused(400)),
        chunks("a blank before a trailer's colon", "3\r\nabc\r\n0\r\nA : b\r\n\r\n", Refused(400)),
        chunks("a folded trailer", "3\r\nabc\r\n0\r\nA: b\r\n c\r\n\r\n", Refused(400)),
        chunks("no size", "\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a size that is none", "g\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a negative size", "-3\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a size with a plus", "+3\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a size with 0x", "0x3\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a space before a size", " 3\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a size in quotes", "\"3\"\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("two sizes", "3 3\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a size over 64 bits", "10000000000000003\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a very long size", &format!("{}3\r\nabc\r\n0\r\n\r\n", "f".repeat(100)), Refused(400)),
        chunks("a bare LF behind the size", "3\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a bare CR behind the size", "3\rabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a bare LF behind an extension", "3;a\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("no line end behind the data", "3\r\nabc0\r\n\r\n", Refused(400)),
        chunks("a bare LF behind the data", "3\r\nabc\n0\r\n\r\n", Refused(400)),
        chunks("more data than its size", "3\r\nabcd\r\n0\r\n\r\n", Refused(400)),
        chunks("less data than its size", "5\r\nabc\r\n0\r\n\r\n", Refused(400)),
        chunks("a bare LF as the end", "3\r\nabc\r\n0\r\n\n\r\n", Refused(400)),
        chunks("a bare LF behind the last size", "3\r\nabc\r\n0\n\r\n", Refused(400)),
        chunks("a bare LF behind a trailer", "3\r\nabc\r\n0\r\nA: b\n\r\n\r\n", Refused(400)),
        chunks("a trailer without a colon", "3\r\nabc\r\n0\r\nA\r\n\r\n", Refused(400)),
        chunks(
            "a very long extension",
            &format!("3;{}\r\nabc\r\n0\r\n\r\n", "a".repeat(70_000)),
            Refused(400),
        ),
        chunks(
            "a very long trailer",
            &format!("3\r\nabc\r\n0\r\nA: {}\r\n\r\n", "b".repeat(90_000)),
            Refused(400),
        ),
        chunks("200 trailers", &format!("3\r\nabc\r\n0\r\n{}\r\n", "A: b\r\n".repeat(200)), Refused(400)),
        chunks("exactly the limit", &format!("10000\r\n{}\r\n0\r\n\r\n", "a".repeat(65_536)), Served(201)),
        chunks(
            "one byte over the limit",
            &format!("10000\r\n{}\r\n1\r\nb\r\n0\r\n\r\n", "a".repeat(65_536)),
            Refused(413),
        ),
        chunks("far over the limit", &format!("10000\r\n{}\r\n", "a".repeat(65_536)).repeat(8), Refused(413)),
    ]);
    for (name, body) in [
        ("nothing", ""),
        ("half a size", "3"),
        ("half a chunk", "3\r\nab"),
        ("a chunk alone", "3\r\nabc\r\n"),
        ("no end of the trailer", "3\r\nabc\r\n0\r\n"),
    ] {
        let name = format!("chunks: {name}, then the end");
        cases.push(Case { ends: true, ..case(name, put_chunks(body), Refused(400)) });
    }
    cases
}
