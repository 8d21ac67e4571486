//! Which Windows this is, or which program pretends to be one.

use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
use windows_sys::Win32::System::SystemInformation::OSVERSIONINFOEXW;

/// Name and release.
pub(super) fn name() -> String {
    let windows = match version() {
        Some(v) => format!("Windows {}.{}.{}", v.dwMajorVersion, v.dwMinorVersion, v.dwBuildNumber),
        None => "Windows".into(),
    };
    match wine() {
        Some(wine) => format!("{windows} (Wine {wine})"),
        None => windows,
    }
}

/// `RtlGetVersion`, because `GetVersionEx` tells programs what their manifest asks for.
fn version() -> Option<OSVERSIONINFOEXW> {
    type RtlGetVersion = unsafe extern "system" fn(*mut OSVERSIONINFOEXW) -> i32;
    let function = ntdll(c"RtlGetVersion")?;
    // SAFETY: this is its signature (wdm.h); it fills the longer structure, too, whose size tells it which one it is.
    let get: RtlGetVersion = unsafe { std::mem::transmute(function) };
    // SAFETY: integers only: all zeroes are a value.
    let mut version: OSVERSIONINFOEXW = unsafe { std::mem::zeroed() };
    version.dwOSVersionInfoSize = size_of::<OSVERSIONINFOEXW>() as u32;
    // SAFETY: the structure says its own size, and outlives the call.
    (unsafe { get(&raw mut version) } == 0).then_some(version)
}

/// Whether this is an edition for clients, which carries out only two `TransmitFile`s at a time (*Remarks* there).
/// Wine, which says that it is one, has no such limit.
pub(super) fn is_for_clients() -> bool {
    const VER_NT_WORKSTATION: u8 = 1;
    !is_wine() && version().is_some_and(|v| v.wProductType == VER_NT_WORKSTATION)
}

/// Its version, where this is Wine.
fn wine() -> Option<String> {
    type WineGetVersion = unsafe extern "C" fn() -> *const c_char;
    let function = ntdll(c"wine_get_version")?;
    // SAFETY: this is its signature (Wine's ntdll exports it for just this use).
    let get: WineGetVersion = unsafe { std::mem::transmute(function) };
    // SAFETY: it returns a constant string.
    let text = unsafe { CStr::from_ptr(get()) };
    Some(text.to_string_lossy().into_owned())
}

/// Whether this is Wine, which differs in places. Found out once.
pub(super) fn is_wine() -> bool {
    static WINE: LazyLock<bool> = LazyLock::new(|| ntdll(c"wine_get_version").is_some());
    *WINE
}

/// A function of it, by name.
pub(super) fn ntdll(name: &CStr) -> Option<unsafe extern "system" fn() -> isize> {
    // SAFETY: both are strings that end with zero; ntdll is loaded in every process, for ever.
    unsafe { GetProcAddress(GetModuleHandleA(c"ntdll.dll".as_ptr().cast()), name.as_ptr().cast()) }
}
