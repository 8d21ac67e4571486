//! Targets of requests, as names of files.

use tidegate_services::files::path::resource;

/// Any text as a target: the name that comes out of it stays inside, is not hidden, and comes out again when it is
/// asked for by itself.
pub fn path(data: &[u8]) {
    let Ok(target) = std::str::from_utf8(data) else { return };
    let Ok(resource) = resource(target) else { return };
    let name = resource.name();
    assert!(!name.contains(['\0', '\\']) && !name.chars().any(char::is_control), "{name:?}");
    if !resource.key.is_empty() {
        for part in name.split('/') {
            assert!(!part.is_empty() && !part.starts_with('.'), "{name:?} of {target:?}");
        }
    }
    assert!(resource.query.is_empty() || resource.query.starts_with('?'));
    // Every character but the slash in its escaped form.
    let escape = |c: char| {
        let mut utf8 = [0; 4];
        let bytes = c.encode_utf8(&mut utf8).bytes();
        if c == '/' { "/".to_owned() } else { bytes.map(|b| format!("%{b:02x}")).collect() }
    };
    let again: String = std::iter::once("/".to_owned()).chain(resource.key.chars().map(escape)).collect();
    if again.len() <= 4096 {
        assert_eq!(
            tidegate_services::files::path::resource(&again).expect("a name").key,
            resource.key,
            "{target:?}"
        );
    }
}
