//! Lines that are requests, lines that are none, and random ones against a plain reader.

use super::*;

const TURNS: usize = 4;
const IMAGES: usize = 3;

fn read(text: &str) -> (std::result::Result<(), LineError>, Request, Vec<u8>) {
    let mut line = text.as_bytes().to_vec();
    let mut request = Request::with_room(TURNS, IMAGES);
    let read = request.read(&mut line);
    (read, request, line)
}

/// A request as one text: roles, texts, pictures.
fn said(text: &str) -> String {
    let (read, request, line) = read(text);
    read.unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut out = String::new();
    for turn in &request.turns {
        out += turn.role.name();
        for piece in &request.pieces[turn.first..turn.end] {
            match piece {
                Piece::Text(text) => out += &format!(" {:?}", text.of(&line)),
                Piece::Picture(path) => out += &format!(" <{}>", path.of(&line)),
            }
        }
        out += ";";
    }
    for image in &request.images {
        out += &format!(" <{}>", image.of(&line));
    }
    if let Some(id) = request.id {
        out += &format!(" id {}", id.of(&line));
    }
    if let Some(max) = request.max_tokens {
        out += &format!(" max {max}");
    }
    out
}

#[test]
fn requests_are_read() {
    for (line, want) in [
        (r#"{"prompt":"hello"}"#, r#"user "hello";"#),
        (
            r#" { "images" : ["a.png","b\u00e9.png"] , "prompt" : "a\n\"b\"\\" , "max_tokens":7, "id":"x\"1"}"#,
            "user \"a\\n\\\"b\\\"\\\\\"; <a.png> <bé.png> id \"x\\\"1\" max 7",
        ),
        (
            r#"{"id":17,"messages":[{"role":"system","content":"be brief"},{"content":[{"type":"image","image":"a.png"},{"text":"what?","type":"text"}],"role":"user"}]}"#,
            r#"system "be brief";user <a.png> "what?"; id 17"#,
        ),
        (r#"{"prompt":"\ud83d\ude00 \u4e2d","images":[]}"#, r#"user "😀 中";"#),
    ] {
        assert_eq!(said(line), want, "{line}");
    }
}

#[test]
fn what_is_no_request_is_refused_by_name() {
    for (line, part) in [
        ("", "'{' is expected"),
        ("[]", "'{' is expected"),
        (r#""hello""#, "'{' is expected"),
        ("{}", "neither \"prompt\" nor \"messages\""),
        (r#"{"prompt":"a"} x"#, "nothing more"),
        (r#"{"prompt":"a""#, "',' or '}'"),
        (r#"{"prompt":"a}"#, "not closed"),
        (r#"{"prompt":7}"#, "'\"' is expected"),
        (r#"{"prompt":"a","prompt":"b"}"#, "one \"prompt\""),
        (r#"{"prompt":"a","image":"b"}"#, "\"image\" is no key of a request"),
        (r#"{"prompt":"a","max_tokens":-1}"#, "a whole number"),
        (r#"{"prompt":"a","max_tokens":1e3}"#, "',' or '}'"),
        (r#"{"prompt":"a","max_tokens":99999999999999999999}"#, "a whole number"),
        (r#"{"prompt":"a","id":007}"#, "a whole number"),
        (r#"{"prompt":"a","id":"\x"}"#, "no string"),
        (r#"{"prompt":"a","id":"x"#, "no string"),
        (r#"{"prompt":"a","id":"\ud800"}"#, "\\u and four"),
        (r#"{"prompt":"a","id":"\udc00\ud800"}"#, "half a surrogate"),
        (r#"{"prompt":"\ud800"}"#, "\\u and four"),
        (r#"{"prompt":"\ud800\u0041"}"#, "half a surrogate"),
        (r#"{"prompt":"\udc00"}"#, "half a surrogate"),
        (r#"{"prompt":"\u12"}"#, "\\u and four"),
        (r#"{"prompt":"\q"}"#, "no escape"),
        ("{\"prompt\":\"a\tb\"}", "control character"),
        (r#"{"prompt":"a","images":["1","2","3","4"]}"#, "more than 3 pictures"),
        (r#"{"messages":[]}"#, "neither"),
        (r#"{"messages":[{"role":"user"}]}"#, "a role and a content"),
        (r#"{"messages":[{"role":"robot","content":"a"}]}"#, "a role is"),
        (r#"{"messages":[{"role":"user","content":"a","content":"b"}]}"#, "no key of a message"),
        (r#"{"messages":[{"role":"user","content":[{"type":"image","text":"a"}]}]}"#, "a part is"),
    ] {
        let (read, ..) = read(line);
        let error = read.expect_err(line);
        assert!(error.to_string().contains(part), "{line}: {error}");
    }
    let many = r#"{"role":"user","content":"a"},"#.repeat(TURNS + 1);
    let line = format!("{{\"messages\":[{}]}}", many.trim_end_matches(','));
    assert!(read(&line).0.expect_err("too many").to_string().contains("4 messages"));
}

/// A refusal carries the name of its request wherever that stands, if it can be written back.
#[test]
fn a_refused_line_keeps_its_id() {
    for (line, id) in [
        (r#"{"promt":"a","id":"x"}"#, Some("\"x\"")),
        (r#"{"id":7,"promt":"a"}"#, Some("7")),
        (r#"{"prompt":"a","max_tokens":-1,"id":7}"#, Some("7")),
        (r#"{"messages":[{"id":1,"role":"robot"}],"id" : "\ud83d\ude00 \n" }"#, {
            Some(r#""\ud83d\ude00 \n""#)
        }),
        (r#"{"prompt":"\q, \"id\":5","id":6}"#, Some("6")),
        (r#"{"prompt":"a" x "id":"y","#, Some("\"y\"")),
        // The last of several, as where all is right.
        (r#"{"promt":"a","id":1,"id":2}"#, Some("2")),
        // Not whole, not its own, no text, no scalar, no request.
        (r#"{"promt":"a","id":12"#, None),
        (r#"{"promt":{"id":3}}"#, None),
        (r#"{"promt":"id","x":3}"#, None),
        (r#"{"promt":"a","id":"\ud800"}"#, None),
        (r#"{"promt":"a","id":[1]}"#, None),
        (r#"{"promt":"a \"id\":3"#, None),
        (r#"["id",3]"#, None),
    ] {
        let (read, request, line_after) = read(line);
        assert!(read.is_err(), "{line}");
        assert_eq!(request.id.map(|id| id.of(&line_after)), id, "{line}");
    }
    // What is no UTF-8 is not written back.
    let mut broken = b"{\"promt\":1,\"id\":\"\xff\"}".to_vec();
    let mut request = Request::with_room(TURNS, IMAGES);
    request.find_id(&mut broken);
    assert_eq!(request.id, None);
}

/// Whatever bytes come, nothing is read outside the line; what is read agrees with a reader that
/// makes a tree.
#[test]
fn random_lines_agree_with_a_tree() {
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"prompt\"",
        "\"messages\"",
        "\"images\"",
        "\"role\"",
        "\"user\"",
        "\"content\"",
        "\"a\\u00e9\\n\"",
        "\"\\ud83d\\ude00\"",
        "\"\\\"",
        "7",
        " ",
        "\"max_tokens\"",
        "\"id\"",
        "\"type\"",
        "\"text\"",
        "\\",
        "é",
        "\"image\"",
        "\"id\":\"\\ud800\"",
        "\"id\":1,",
    ];
    let good = [
        r#"{"prompt":"a\u00e9\n","images":["x","y"],"max_tokens":7}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00"}]}],"id":7}"#,
    ];
    let mut state = 7_u64;
    let mut draw = |bound: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut taken = 0;
    for round in 0..40_000 {
        let mut text = String::new();
        if round % 2 == 0 {
            let base = good[draw(2)];
            let mut at = draw(base.len() + 1);
            while !base.is_char_boundary(at) {
                at -= 1;
            }
            let mut end = (at + draw(3)).min(base.len());
            while !base.is_char_boundary(end) {
                end -= 1;
            }
            let end = end.max(at);
            text = format!("{}{}{}", &base[..at], pieces[draw(pieces.len())], &base[end..]);
        } else {
            for _ in 0..draw(14) {
                text += pieces[draw(pieces.len())];
            }
        }
        let tree: std::result::Result<serde_json::Value, _> = serde_json::from_str(&text);
        let (read, request, line) = read(&text);
        assert!(std::str::from_utf8(&line).is_ok() || read.is_err(), "{text}");
        // Whatever is written back is JSON.
        if let Some(id) = request.id {
            let id = serde_json::from_str::<serde_json::Value>(id.of(&line));
            assert!(id.is_ok_and(|id| id.is_string() || id.is_u64()), "{text}");
        }
        if read.is_ok() {
            taken += 1;
            let tree = tree.unwrap_or_else(|error| panic!("{text}: {error}"));
            if let Some(prompt) = tree.get("prompt").and_then(serde_json::Value::as_str) {
                let Piece::Text(span) = request.pieces[0] else { panic!("{text}") };
                assert_eq!(span.of(&line), prompt, "{text}");
            }
            let images = tree.get("images").and_then(serde_json::Value::as_array);
            assert_eq!(request.images.len(), images.map_or(0, Vec::len), "{text}");
        }
    }
    assert!(taken > 100, "{taken}");
}
