use super::*;
use clap::CommandFactory;

/// What the file and the arguments come to, for each server.
fn lines(file: &str, given: &[&str]) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, file).unwrap();
    let config = path.display().to_string();
    let given = given.iter().map(|word| if *word == "FILE" { &config } else { *word });
    let given = ["tidegate"].into_iter().chain(given).map(Into::into).collect();
    let text = |word: &OsString| word.to_string_lossy().replace(&config, "FILE");
    let line = |words: Vec<OsString>| words.iter().skip(1).map(text).collect::<Vec<_>>().join(" ");
    match expand(&crate::Cli::command(), given) {
        Ok(lines) => Ok(lines.into_iter().map(line).collect()),
        Err(Failure::Usage(e)) => Err(format!("{e:#}").replace(&config, "FILE")),
        Err(Failure::Run(e)) => panic!("{e:#}"),
    }
}

/// The same for a file with one server.
fn words(file: &str, given: &[&str]) -> Result<String, String> {
    let mut lines = lines(file, given)?;
    assert_eq!(lines.len(), 1, "{lines:?}");
    Ok(lines.remove(0))
}

fn served(keys: &str) -> Result<String, String> {
    words(&format!("[[server]]\nservice = \"http\"\n{keys}"), &["serve", "--config", "FILE"])
}

#[track_caller]
fn refused(outcome: Result<String, String>, says: &[&str]) {
    let text = outcome.unwrap_err();
    assert!(text.starts_with("FILE: "), "{text}");
    for part in says {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

#[test]
fn a_file_stands_for_the_words_of_a_command_line() {
    let keys = "listen = \"127.0.0.1:0\"\nmax-connections = 10\nmptcp = true\nstats = false\ncpus = [0, 1]";
    let words = served(keys).unwrap();
    assert!(words.starts_with("serve --config FILE http "), "{words}");
    for word in ["--listen=127.0.0.1:0", "--max-connections=10", "--mptcp", "--cpus=0", "--cpus=1"] {
        assert!(words.split(' ').any(|w| w == word), "{word} in {words}");
    }
    assert!(!words.contains("--stats"), "{words}");
}

#[test]
fn a_server_may_have_several_addresses() {
    let words = served("listen = [\"127.0.0.1:0\", \"unix:/run/a,b\"]").unwrap();
    assert!(words.contains("--listen=127.0.0.1:0 --listen=unix:/run/a,b"), "{words}");
    let file = "[[server]]\nservice = \"http\"\nlisten = [\"127.0.0.1:1\", \"[::1]:1\"]\n";
    let given = ["serve", "--config", "FILE", "http", "--listen", "127.0.0.1:2"];
    let beside = super::tests::words(file, &given).unwrap();
    assert!(!beside.contains(":1 ") && !beside.contains("[::1]"), "all of them are replaced: {beside}");
}

#[test]
fn keys_of_the_process_stand_above_those_of_the_server() {
    let file = "log = \"json\"\n[[server]]\nservice = \"echo\"\n";
    let all = words(file, &["serve", "--config", "FILE"]).unwrap();
    assert!(all.contains("--log=json"), "{all}");
    assert!(!words(file, &["--log", "text", "serve", "--config", "FILE"]).unwrap().contains("json"));
    refused(served("log = \"json\""), &["[[server]]", "unknown key `log`"]);
}

#[test]
fn the_command_line_wins() {
    let file = "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:1\"\nmodel = \"poll\"\n";
    for given in [
        &["serve", "--config", "FILE", "http", "--listen", "127.0.0.1:2"][..],
        &["serve", "http", "--listen", "127.0.0.1:2", "--config", "FILE"],
    ] {
        let words = words(file, given).unwrap();
        assert!(!words.contains("127.0.0.1:1") && words.contains("--model=poll"), "{words}");
    }
    refused(words(file, &["serve", "--config", "FILE", "echo"]), &["for the service http", "not echo"]);
}

#[test]
fn what_the_file_lacks_may_come_from_the_command_line() {
    let file = "[[server]]\nservice = \"http\"\ntls-key = \"key.pem\"\n";
    let given = ["serve", "--config", "FILE", "http", "--tls-cert", "cert.pem"];
    assert!(words(file, &given).unwrap().ends_with("--tls-key=key.pem"));
    refused(words(file, &given[..4]), &["required", "--tls-cert"]);
}

#[test]
fn an_unknown_key_is_an_error_with_a_suggestion() {
    refused(served("max-conections = 5"), &["unknown key `max-conections`", "`max-connections`"]);
    refused(served("max_connections = 5"), &["`max-connections`"]);
    refused(served("zzz = 5"), &["unknown key `zzz`", "serve --help"]);
    for key in ["help", "version", "config", "service-name", "\"\"", "\"a b\"", "\"-\"", "\"listen=x\""] {
        refused(served(&format!("{key} = true")), &["unknown key"]);
    }
    let top = words("lag = 1\n[[server]]\nservice = \"http\"", &["serve", "--config", "FILE"]);
    refused(top, &["top of the file", "`lag`"]);
}

#[test]
fn a_wrong_type_is_an_error_with_the_name_of_the_key() {
    for (keys, says) in [
        ("mptcp = \"yes\"", ["mptcp is text", "true or false"]),
        ("listen = true", ["listen is true or false", "one value"]),
        ("listen = []", ["listen is an empty list", "leave it out"]),
        ("listen = [\"127.0.0.1:0\", 80]", ["--listen", "ADDR:PORT"]),
        ("model = [\"epoll\"]", ["model is a list", "one value"]),
        ("cpus = [[0]]", ["cpus is a list", "[0, 1]"]),
        ("threads = \"four\"", ["--threads", "four"]),
        ("threads = -1", ["--threads", "-1"]),
        ("idle-timeout = \"5x\"", ["--idle-timeout", "a plain number is seconds"]),
        ("when-full = \"panic\"", ["--when-full", "wait, refuse"]),
        ("page = 2026-01-01", ["page is a date", "one value"]),
        ("[server.page]\na = 1", ["page is a table", "one value"]),
    ] {
        refused(served(keys), &says);
    }
}

#[test]
fn a_file_that_is_none_says_what_to_do() {
    refused(words("x = ", &["serve", "--config", "FILE"]), &["line 1"]);
    refused(words("", &["serve", "--config", "FILE"]), &["no [[server]]"]);
    refused(words("server = []", &["serve", "--config", "FILE"]), &["no [[server]]"]);
    refused(words("[server]\nservice = \"http\"", &["serve", "--config", "FILE"]), &["write [[server]]"]);
    refused(words("server = [1]", &["serve", "--config", "FILE"]), &["write [[server]]"]);
    refused(words("[[server]]", &["serve", "--config", "FILE"]), &["service = \"http\"", "echo"]);
    refused(words("[[server]]\nservice = \"htp\"", &["serve", "--config", "FILE"]), &["\"htp\"", "http"]);
    refused(words("[[server]]\nservice = 1", &["serve", "--config", "FILE"]), &["a number", "http"]);
    let missing = expand(&crate::Cli::command(), ["x", "serve", "--config", "/none"].map(Into::into).into());
    let Err(Failure::Usage(e)) = missing else { panic!("no error") };
    assert!(format!("{e:#}").contains("give a file that exists"), "{e:#}");
}

#[test]
fn every_server_of_a_file_has_a_line_of_its_own() {
    let file = "log = \"json\"\n[[server]]\nservice = \"http\"\nmodel = \"poll\"\n[[server]]\nservice = \"udp\"\nkind = \"echo\"\n";
    let all = lines(file, &["serve", "--config", "FILE"]).unwrap();
    let [http, udp] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(http, "serve --config FILE http --log=json --model=poll");
    assert_eq!(udp, "serve --config FILE udp --log=json -- echo");
    let one = lines(file, &["serve", "--config", "FILE", "http", "--model", "epoll"]);
    refused(one.map(|lines| lines.join("")), &["2 [[server]]", "ambiguous", "http"]);
}

#[test]
fn what_is_wrong_with_one_of_several_names_its_table() {
    let second = |keys: &str| {
        let file = format!("[[server]]\nservice = \"http\"\n[[server]]\n{keys}");
        lines(&file, &["serve", "--config", "FILE"]).map(|lines| lines.join("\n"))
    };
    refused(second(""), &["[[server]] 2 has no key `service`"]);
    refused(second("service = \"htp\""), &["[[server]] 2", "\"htp\""]);
    refused(second("service = \"http\"\nmodle = 1"), &["[[server]] 2: unknown key `modle`", "`model`"]);
    refused(second("service = \"http\"\nthreads = -1"), &["[[server]] 2", "--threads"]);
}

#[test]
fn words_that_are_no_options_stand_behind_all_options() {
    let values = |text: &str| Placed { values: vec![text.into()], ..Placed::default() };
    let options = Placed { options: vec!["--a".into()], ..Placed::default() };
    let all = |given: &[&str]| with(given.iter().map(Into::into).collect(), [&options, &values("-x")]);
    assert_eq!(all(&["serve"]), ["serve", "--a", "--", "-x"]);
    assert_eq!(all(&["serve", "--", "y"]), ["serve", "--a", "--", "y", "-x"]);
}

#[test]
fn every_option_of_a_server_has_a_key() {
    let mut cli = crate::Cli::command();
    cli.build();
    let serve = cli.find_subcommand(COMMAND).unwrap();
    for service in serve.get_subcommands().filter(|c| c.get_name() != "help") {
        for arg in service.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str())) {
            let command = if arg.is_global_set() { serve } else { service };
            let part = ConfigSection { command, name: "", given: None };
            assert!(arg.get_id() == OPTION || part.arg(name(arg)).is_ok(), "{}", arg.get_id());
        }
    }
}
