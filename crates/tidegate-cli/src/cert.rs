//! `tidegate cert`: a TLS certificate for tests, and the authority that signs it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::ServerName;
use time::{Duration, OffsetDateTime};

use crate::out::say;
use crate::system::create_private;
use crate::{CommandResult, Failure};

/// Options of `cert`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory for ca.pem, cert.pem and key.pem; created if necessary.
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Another host name or IP address of the server, besides localhost, 127.0.0.1 and ::1; may be given several times.
    #[arg(long = "name", value_name = "NAME", value_parser = server_name)]
    names: Vec<String>,
    /// Validity of the certificate in days.
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
    /// Replace files that exist.
    #[arg(long)]
    force: bool,
}

/// Names that every certificate has.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Tolerance for clock differences between machines.
const SKEW: Duration = Duration::hours(1);

/// The contents of the three files.
struct Papers {
    ca: String,
    /// The server certificate, followed by the authority's.
    cert: String,
    key: String,
}

/// Runs the command.
pub fn run(args: &Args) -> CommandResult {
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| args.dir.join(name));
    if !args.force
        && let Some(there) = [&ca, &cert, &key].into_iter().find(|path| path.symlink_metadata().is_ok())
    {
        let e = anyhow!("{} exists; choose another directory, or replace it with --force", there.display());
        return Err(Failure::Usage(e));
    }
    let papers = Papers::new(args).context("cannot create a certificate")?;
    fs::create_dir_all(&args.dir)
        .with_context(|| format!("cannot create the directory {}; choose another one", args.dir.display()))?;
    // The key first: if it cannot be written, no usable-looking certificate remains.
    write(&key, &papers.key, args.force, create_private)?;
    write(&cert, &papers.cert, args.force, |path| File::create_new(path))?;
    write(&ca, &papers.ca, args.force, |path| File::create_new(path))?;
    let [ca, cert, key] = [&ca, &cert, &key].map(|path| path.display());
    say!("{ca}: the authority, for clients; its key was discarded, so it cannot sign anything else")?;
    say!("{cert}: the certificate, for {} days, for {}", args.days, names(args).join(", "))?;
    say!("{key}: its private key")?;
    say!("\ntidegate serve http --listen 127.0.0.1:8443 --tls-cert {cert} --tls-key {key}")?;
    say!("tidegate load http https://127.0.0.1:8443/ --tls-ca {ca}")?;
    Ok(ExitCode::SUCCESS)
}

impl Papers {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let now = OffsetDateTime::now_utc();
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "tidegate test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        (params.not_before, params.not_after) = (now - SKEW, now + Duration::days(args.days.into()));
        let ca_key = KeyPair::generate()?;
        let ca = params.self_signed(&ca_key)?.pem();
        let validity = (params.not_before, params.not_after);
        let authority = Issuer::new(params, ca_key);

        let names = names(args);
        let common_name = args.names.first().map_or(LOCAL[0], String::as_str);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity;
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &authority)?.pem() + &ca;
        Ok(Self { ca, cert, key: key.serialize_pem() })
    }
}

/// All names of the server, each once.
fn names(args: &Args) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in LOCAL.iter().map(|name| (*name).to_owned()).chain(args.names.iter().cloned()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A host name, one with `*.` before it, or an IP address; in lower case.
fn server_name(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    let (is_wildcard, host) = name.strip_prefix("*.").map_or((false, name.as_str()), |host| (true, host));
    let is_right = match ServerName::try_from(host) {
        Ok(ServerName::DnsName(_)) => (host.contains('.') || !is_wildcard) && !host.ends_with('.'),
        Ok(ServerName::IpAddress(_)) => !is_wildcard,
        Ok(_) | Err(_) => false,
    };
    let why = "not a host name or IP address; write server.example, *.server.example, 10.0.0.1 or fd00::1";
    is_right.then_some(name).ok_or_else(|| why.into())
}

/// Writes a new file; with `replace` the one that exists is removed before, so that the new one has the right mode.
fn write(
    path: &Path,
    text: &str,
    replace: bool,
    create: impl FnOnce(&Path) -> io::Result<File>,
) -> anyhow::Result<()> {
    let removed = if replace { fs::remove_file(path) } else { Ok(()) };
    let removed = removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) });
    let written = removed.and_then(|()| create(path)).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}; choose another directory", path.display()))
}

#[cfg(test)]
mod tests {
    use super::server_name;

    #[test]
    fn names_are_host_names_or_addresses() {
        for name in ["a", "Server.Example", "*.server.example", "10.0.0.1", "fd00::1", "x-1.y"] {
            assert_eq!(server_name(name), Ok(name.to_ascii_lowercase()));
        }
        let long = "a".repeat(64);
        for name in [
            "",
            ".",
            "a.",
            "a b",
            "-a",
            "*",
            "*.com",
            "a.*.b",
            "*.10.0.0.1",
            "http://a",
            "a:80",
            "ä.example",
            &long,
        ] {
            assert!(server_name(name).is_err(), "{name:?}");
        }
    }
}
