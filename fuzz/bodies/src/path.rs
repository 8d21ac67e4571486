//! Targets of requests, as names of files.

use tidegate_services::files::path::place;

/// Any text as a target: the name that comes out of it stays inside, is not hidden, and comes out again when it is
/// asked for by itself.
pub fn path(data: &[u8]) {
    let Ok(target) = std::str::from_utf8(data) else { return };
    let Ok(place) = place(target) else { return };
    let name = place.name();
    assert!(!name.contains(['\0', '\\']) && !name.chars().any(char::is_control), "{name:?}");
    if !place.key.is_empty() {
        for part in name.split('/') {
            assert!(!part.is_empty() && !part.starts_with('.'), "{name:?} of {target:?}");
        }
    }
    assert!(place.query.is_empty() || place.query.starts_with('?'));
    // Every character but the slash in its escaped form.
    let escape = |c: char| {
        let mut utf8 = [0; 4];
        let bytes = c.encode_utf8(&mut utf8).bytes();
        if c == '/' { "/".to_owned() } else { bytes.map(|b| format!("%{b:02x}")).collect() }
    };
    let again: String = std::iter::once("/".to_owned()).chain(place.key.chars().map(escape)).collect();
    if again.len() <= 4096 {
        assert_eq!(
            tidegate_services::files::path::place(&again).expect("a name").key,
            place.key,
            "{target:?}"
        );
    }
}
