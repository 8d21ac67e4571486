//! 10,000 targets that try to leave the folder, on a real server.

use tidegate::Model;
use tidegate_services::{FilesOptions, Listing};

use crate::client::{Client, SECRET, folder, serve};

/// What targets are put together from.
const PARTS: &[&str] = &[
    "..",
    ".",
    "",
    "%2e%2e",
    "%2E.",
    ".%2e",
    "%252e%252e",
    "%c0%ae%c0%ae",
    "%e0%80%ae%e0%80%ae",
    "%c0%af",
    "..%2f",
    "..%5c",
    "..\\",
    "%00",
    "..%00",
    "secret",
    "root",
    "sub",
    "dir",
    "small",
    "out",
    "up",
    "absolute",
    "etc",
    "passwd",
    ".hidden",
    "%2ehidden",
    "file.txt",
    "....",
    "..;",
    "%u002e%u002e",
    "..%c1%9c",
    "%ff",
    "%",
    "%2",
    "~",
    "*",
    "C:",
    "secret%00.html",
    "..%2e",
    "%09",
    "%0d%0aX: y",
];

/// Those that may well lead somewhere.
const MILD: &[&str] = &["..", ".", "", "%2e%2e", "sub", "dir", "root", "up", "out", "small", "file.txt"];

const JOINTS: &[&str] = &["/", "//", "/./", "%2f", "%2F", "%5c", "\\", "%252f", "/;/", "/%2e/"];

#[test]
fn ten_thousand_attacks_never_leave_the_folder() {
    let outer = folder();
    #[cfg(unix)]
    for (link, to) in [
        ("out", "../secret"),
        ("up", ".."),
        ("absolute", "/"),
        ("sub/out", "../../secret"),
        ("sub/up", "../.."),
    ] {
        std::os::unix::fs::symlink(to, outer.path().join("root").join(link)).expect("a link");
    }
    let server = serve(
        Model::best().model,
        outer.path(),
        FilesOptions { listing: Listing::On, ..FilesOptions::default() },
    );
    let mut client = Client::of(&server);
    let mut random = fastrand::Rng::with_seed(8);
    let (mut inside, mut refused) = (0, 0);
    for count in 0..10_000 {
        let mut target = String::from("/");
        let (parts, joints) = if random.bool() { (MILD, &JOINTS[..3]) } else { (PARTS, JOINTS) };
        for _ in 0..random.usize(1..=6) {
            target.push_str(parts[random.usize(..parts.len())]);
            target.push_str(joints[if random.bool() { 0 } else { random.usize(..joints.len()) }]);
        }
        if random.u8(..4) == 0 {
            target.push_str(["secret", "etc/passwd", ".hidden", "out", "small"][random.usize(..5)]);
        }
        let answer = client.get(&target, "");
        let text = String::from_utf8_lossy(&answer.body);
        assert!(
            !text.contains(SECRET) && !text.contains("root:x:") && !text.contains(">secret<"),
            "{count}: {target}: {text}"
        );
        match answer.status {
            200 | 301 => inside += 1,
            400 | 403 | 404 => refused += 1,
            other => panic!("{count}: {target}: {other}"),
        }
        if answer.field("Connection") == Some("close") {
            client = Client::of(&server);
        }
    }
    assert!(inside > 100 && refused > 5000, "{inside} inside, {refused} refused: the attacks are none");
    server.stop();
    server.join();
}
