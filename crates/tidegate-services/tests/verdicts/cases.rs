//! The data files: what is sent, and what has to come of it.
//!
//! A file is blocks of lines `key: value`, with empty lines between them; lines with `#` in front are left out. Every
//! block has `name`, `rfc` (where it says so), `send` and `gives`; `rest` is what is sent after it where nothing may be
//! answered yet; `warn` says why something is accepted that could be refused, or the other way round; `only` names the
//! one service that it is for, or is `memory`: not through sockets. In what is sent, `\r`, `\n`, `\t`, `\\` and `\xHH`
//! are bytes, and `\{N*text}` is the text N times.

/// One of them.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub send: String,
    /// What is sent once nothing was answered.
    pub rest: Option<String>,
    pub gives: String,
    /// The one service it is for, or `memory`.
    pub only: Option<String>,
}

/// All cases of a file. Panics if one of them is not as it should be.
pub fn cases(file: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for block in file.split("\n\n") {
        let lines = block.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let pairs: Vec<(&str, &str)> =
            lines.map(|line| line.split_once(": ").unwrap_or_else(|| panic!("{line:?}"))).collect();
        if pairs.is_empty() {
            continue;
        }
        let find = |key: &str| pairs.iter().find(|(k, _)| *k == key).map(|(_, value)| (*value).to_owned());
        let must = |key: &str| find(key).unwrap_or_else(|| panic!("no {key} in {block:?}"));
        for (key, _) in &pairs {
            assert!(
                ["name", "rfc", "send", "rest", "gives", "only", "warn"].contains(key),
                "{key} in {block:?}"
            );
        }
        let case = Case {
            name: must("name"),
            send: must("send"),
            rest: find("rest"),
            gives: must("gives"),
            only: find("only"),
        };
        must("rfc");
        assert!(cases.iter().all(|other| other.name != case.name), "{:?} is there twice", case.name);
        cases.push(case);
    }
    cases
}

/// The bytes that a text encodes.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let used = match escape.as_bytes()[0] {
            b'r' => (bytes.push(b'\r'), 1).1,
            b'n' => (bytes.push(b'\n'), 1).1,
            b't' => (bytes.push(b'\t'), 1).1,
            b'\\' => (bytes.push(b'\\'), 1).1,
            b'x' => (bytes.push(u8::from_str_radix(&escape[1..3], 16).expect("two digits")), 3).1,
            b'{' => {
                let end = escape.find('}').expect("a repetition ends");
                let (times, what) = escape[1..end].split_once('*').expect("N*text");
                let what = self::bytes(what);
                (0..times.parse().expect("a number")).for_each(|_: u32| bytes.extend_from_slice(&what));
                end + 1
            }
            other => panic!("\\{} in {text:?}", char::from(other)),
        };
        rest = &escape[used..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[test]
fn texts_stand_for_bytes() {
    assert_eq!(bytes(r"a\r\n\x00\\\{3*\t\xff}b"), b"a\r\n\0\\\t\xff\t\xff\t\xffb");
}
