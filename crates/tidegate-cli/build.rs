//! Names once what the command asks of the system besides the library: `has_signals`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(has_signals)");
    if std::env::var_os("CARGO_CFG_UNIX").is_some() {
        println!("cargo::rustc-cfg=has_signals");
    }
}
