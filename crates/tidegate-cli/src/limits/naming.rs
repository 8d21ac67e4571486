//! Translates field names in library errors to options or config keys.

use std::ffi::OsStr;

use clap::{Command, CommandFactory};
use tidegate::Policy;
use tidegate::policy::{DatagramPolicy, Limited};
use tidegate_services::layers::ProxyLimits;
use tidegate_services::websocket::WebSocketLimits;
use tidegate_services::{ChatLimits, FilesLimits, HttpLimits, UpstreamLimits};
use tidegate_tls::TlsLimits;

/// Where a user sets limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionSource {
    CommandLine,
    /// A file; options on the command line override it.
    File,
}

/// The text with field names replaced by options, or by keys of a file.
pub fn in_users_words(text: &str, source: OptionSource) -> String {
    let cli = crate::Cli::command();
    let long = |name: &str| option(&cli, name);
    replaced(text, long, |option| source == OptionSource::CommandLine || is_given(option))
}

/// Whether an option is on the command line.
fn is_given(option: &str) -> bool {
    let long = format!("--{option}");
    std::env::args_os()
        .any(|word| word == OsStr::new(&long) || word.to_string_lossy().starts_with(&format!("{long}=")))
}

/// The option of `serve` that sets a field.
fn option(cli: &Command, name: &str) -> Option<String> {
    if let Some(option) = of_a_table(name) {
        return Some(option.to_owned());
    }
    let dashed = name.replace('_', "-");
    let mut services = cli.find_subcommand("serve")?.get_subcommands();
    let has = |command: &Command| command.get_arguments().any(|arg| arg.get_long() == Some(dashed.as_str()));
    services.any(has).then_some(dashed)
}

/// The option of a limit of a policy, a service or a layer.
fn of_a_table(name: &str) -> Option<&'static str> {
    fn of<P: Limited>(name: &str) -> Option<&'static str> {
        P::limit(name).map(|limit| limit.option)
    }
    let tables = [
        of::<Policy>,
        of::<HttpLimits>,
        of::<FilesLimits>,
        of::<UpstreamLimits>,
        of::<WebSocketLimits>,
        of::<ChatLimits>,
        of::<ProxyLimits>,
        of::<TlsLimits>,
        of::<DatagramPolicy>,
    ];
    tables.into_iter().find_map(|of| of(name))
}

/// Replaces names that cannot be ordinary words: those with special characters or in backticks.
fn replaced(text: &str, option: impl Fn(&str) -> Option<String>, is_option: impl Fn(&str) -> bool) -> String {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "_./-`".contains(c);
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let bare = word.trim_end_matches('.');
        let quoted = bare.strip_prefix('`').and_then(|word| word.strip_suffix('`'));
        let name = quoted.or_else(|| Some(bare).filter(|word| word.contains(['_', '.'])));
        match name.and_then(&option) {
            Some(option) if is_option(&option) => out.push_str(&format!("--{option}")),
            Some(option) => out.push_str(&format!("`{option}`")),
            None => out.push_str(bare),
        }
        out.push_str(&word[bare.len()..]);
        let next = after.find(is_of_word).unwrap_or(after.len());
        let (between, from) = after.split_at(next);
        out.push_str(between);
        rest = from;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, source: OptionSource) -> String {
        let cli = crate::Cli::command();
        replaced(text, |name| option(&cli, name), |_| source == OptionSource::CommandLine)
    }

    #[test]
    fn fields_are_called_as_options_or_keys() {
        let text = "`outbox.low` (64KiB) contradicts `outbox.high` (16KiB): lower head_bytes.";
        assert_eq!(
            said(text, OptionSource::CommandLine),
            "--outbox-low (64KiB) contradicts --outbox-high (16KiB): lower --head-bytes."
        );
        assert_eq!(
            said(text, OptionSource::File),
            "`outbox-low` (64KiB) contradicts `outbox-high` (16KiB): lower `head-bytes`."
        );
        assert_eq!(
            said("`threads` of accept.batch", OptionSource::CommandLine),
            "--threads of --accept-batch"
        );
        let text = "`proxy_protocol.header_bytes` and `tls.handshake_timeout` of `websocket.message_bytes`";
        assert_eq!(
            said(text, OptionSource::CommandLine),
            "--proxy-header-bytes and --tls-handshake-timeout of --message-bytes"
        );
    }

    #[test]
    fn what_is_no_limit_stays() {
        for text in
            ["its threads wait", "/srv/head_bytes/x.html ü", "`poll` net.core.wmem_default, RLIMIT", ""]
        {
            assert_eq!(said(text, OptionSource::CommandLine), text);
        }
    }
}
