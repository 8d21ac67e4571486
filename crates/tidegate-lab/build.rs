//! Which commit this build is of, for the runs it saves: `TIDEGATE_COMMIT`, empty outside a checkout.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-env=TIDEGATE_COMMIT={}", commit().unwrap_or_default());
}

fn commit() -> Option<String> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")?;
    let root = Path::new(&here).ancestors().nth(2)?;
    let git = |args: &[&str]| {
        let output =
            Command::new("git").args(["--no-optional-locks", "-C"]).arg(root).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // A package unpacked below somebody else's checkout has nothing to do with its commits.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // Any edit of a source may make the tree dirty, and any commit clean again.
    println!("cargo::rerun-if-changed={}", root.join("crates").display());
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
}
